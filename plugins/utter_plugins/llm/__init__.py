"""The llm plugin: a language model behind a server that speaks the OpenAI API.

Rules here: `plugin` alone knows the wire, `server` alone knows HTTP, `chat` the shape of the API's answers, `choosing`
what a model is asked in order to choose and what its answer means. What is asked goes to the one address of the
settings and nowhere else, and neither it nor the key is ever logged.
"""
