"""fairseq's Transformer options as one flat dataclass, the same for its command line and for configuration files.

fairseq nests them (``encoder.layers``), but its command line keeps options in one flat namespace and doesn't fill
nested dataclasses from it.
"""

from dataclasses import field, fields, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig


def transformer_options(name: str, defaults: dict[str, Any], derived: dict[str, str]) -> Any:
    """A dataclass of fairseq's Transformer options under their flat names (``encoder_layers``).

    Args:
        name: of the class.
        defaults: those that aren't fairseq's.
        derived: sizes that follow from others where they aren't given, and in words how; their default is None.
    """
    return make_dataclass(name, _flat_fields(TransformerConfig, defaults, derived), bases=(FairseqDataclass,))


def _flat_fields(
    config: type, defaults: dict[str, Any], derived: dict[str, str], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    flat: list[tuple[str, Any, Any]] = []
    for item in fields(config):
        name = prefix + item.name
        if item.name == "_name":
            continue
        if isinstance(item.type, type) and issubclass(item.type, FairseqDataclass):
            flat += _flat_fields(item.type, defaults, derived, name + "_")
        elif name in derived:
            text = f"{item.metadata.get('help', name.replace('_', ' '))} (default: {derived[name]})"
            kind = Optional[int]  # noqa: UP045 - fairseq doesn't read "int | None"
            flat.append((name, kind, field(default=None, metadata={**item.metadata, "help": text})))
        else:
            default = defaults.get(name, item.default)
            flat.append((name, item.type, field(default=default, metadata=item.metadata)))
    return flat
