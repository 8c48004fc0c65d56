"""The conformance kit: does a plugin, or a runner, keep to PROTOCOL.md?

Rules here: the kit knows the protocol's document and nothing of the program that it tests; it speaks to it in bytes of
its own making, as a friendly and as a hostile other end would; every check names the section that it is about.

In a test of a plugin:

    from utter_sdk.conformance.plugin import Subject, check_plugin

    def test_it_keeps_to_the_protocol():
        report = check_plugin(Subject.from_manifest("my-plugin/utter-plugin.toml"))
        assert report.ok, report.text()
"""
