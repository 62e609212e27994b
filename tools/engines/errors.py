"""The one error that the engine build raises for anything a user can mend."""


class EngineError(Exception):
    """Message: which engine or patch, what was expected, what was found, and what to do."""
