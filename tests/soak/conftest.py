"""What a soak says goes to the terminal, whether it passes or not."""

from collections.abc import Callable

import pytest

Tell = Callable[[object], None]


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Return a function that writes one line to the terminal."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    writer = request.config.get_terminal_writer()

    def write(what: object) -> None:
        with capture.global_and_fixture_disabled():
            writer.line(f"\nsoak: {what}")

    return write
