"""See that params.yaml makes sense, before DVC touches anything. Every stage checks the same when it starts."""

from common import run
from lesa.settings import Settings


def main(settings: Settings) -> None:
    print(f"params.yaml is fine: {settings.base.model}, {settings.expansion.method}, seed {settings.seed}")


if __name__ == "__main__":
    run(main)
