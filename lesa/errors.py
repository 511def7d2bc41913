"""The one exception that stands for a mistake a person can mend."""


class LesaError(Exception):
    """Something outside the program is wrong: a setting, a file, a model.

    The message is one sentence that names the key or file, what was found and what would be right. Programs
    print it and exit with a status other than 0; anything else that is raised is a bug.
    """


class DivergedError(LesaError):
    """A training's loss is no longer a number."""
