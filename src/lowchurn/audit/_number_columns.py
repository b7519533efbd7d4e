"""Which column means what where outcomes are numbers: the value, its target, or columns of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowchurn._checks import unknown_name
from lowchurn.audit._columns import Columns, Numbers, Predicted, Schemas, as_names, check_roles, key_types, of_each

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings

KINDS = {"integer", "float", "decimal", "null"}  # a column without any value fits


def resolve_numbers(schemas: Schemas, settings: Settings) -> Columns:
    """The meaning of the columns; a wrong name, or a column that holds no numbers, is refused."""
    types, checks = key_types(as_names("id", settings.id), schemas)
    by, features = check_roles(schemas, settings)
    role = "gain" if settings.gain is not None else "loss"
    costs = of_each(schemas, getattr(settings, role))
    values = costs if settings.value is None else of_each(schemas, settings.value)
    for side, value, cost in zip(schemas, values, costs, strict=True):
        _check_numbers("value" if settings.value is not None else role, schemas, side, value)
        if cost is not None:
            _check_numbers(role, schemas, side, cost)
    target = settings.target
    if target is not None:
        held = [side for side, schema in schemas.items() if isinstance(target, str) and target in schema]
        if not held:
            raise unknown_name("audit", "target column", target, set().union(*schemas.values()))
        for side in held:
            _check_numbers("target", schemas, side, target)
    loss = "absolute error" if target is not None else None if costs[-1] is None else str(costs[-1])
    return Columns(
        id=types,
        sides={
            side: Predicted(label=value, loss=cost) for side, value, cost in zip(schemas, values, costs, strict=True)
        },
        classes=(),
        answer="float64",
        label=target,
        weight=settings.weight,
        group=settings.group,
        by=by,
        features=features,
        checks=tuple(checks),
        numbers=Numbers(float(settings.tolerance), settings.relative, loss, settings.gain is not None),
    )


def _check_numbers(role: str, schemas: Schemas, side: str, name: object) -> None:
    schema = schemas[side]
    if not isinstance(name, str):
        raise ValueError(f"audit: {role} must be a column name or a pair of them, got {name!r}.")
    if name not in schema:
        raise unknown_name("audit", f"{role} column in the {side} table", name, schema)
    if (kind := schema[name].kind) not in KINDS:
        remedy = {
            "text": "Write numbers with a decimal point, or name it as labels: prediction=.",
            "boolean": "Truth values are decisions: prediction=.",
        }
        raise ValueError(
            f"audit: {role} column {name!r} must hold numbers, got {kind} in the {side} table. "
            f"{remedy.get(kind, 'Convert it to numbers.')}"
        )
