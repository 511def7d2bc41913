"""Whether runs of a race ran under the same conditions: budget, number of new layers, trained weights, blocks."""

from collections.abc import Mapping
from typing import Any

FACTS = {
    "tokens": "tokens trained on",
    "trained_parameters": "trained parameters",
    "new_layers": "new layers",
    "order_sha256": "training blocks or their order",
    "heldout_sha256": "held-out blocks",
}
"""What has to be the same in all runs of one seed, by the name it has in a run's facts."""


def differences(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """What differs between two runs of one seed, in words; empty where the comparison is fair.

    Args:
        facts: the keys of ``FACTS``.
        reference: the same of the run that is the measure.
    """
    found = []
    for name, title in FACTS.items():
        if facts[name] != reference[name]:
            numbers = all(isinstance(value, int) for value in (facts[name], reference[name]))
            found.append(f"{title} ({facts[name]:,} against {reference[name]:,})" if numbers else title)
    return found
