"""What can be paused and put to sleep."""


class Pausable:
    """Holds whether an engine may serve. What else sleeping means is the engine's own."""

    _is_paused = _is_asleep = False

    @property
    def is_serving(self) -> bool:
        return not (self._is_paused or self._is_asleep)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def wake(self) -> None:
        self._is_asleep = False
