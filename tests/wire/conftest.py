"""Settings of the property tests: on two busy cores an example may take longer than hypothesis's 200 ms."""

from hypothesis import settings

settings.register_profile("stockade", deadline=None, max_examples=60)
settings.load_profile("stockade")
