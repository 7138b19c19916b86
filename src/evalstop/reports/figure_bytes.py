"""Figures as bytes that repeat: no date, no random names, whatever the user's matplotlib says."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Literal, TypeAlias

from matplotlib import rc_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMS", "Form", "figure_bytes"]

Form: TypeAlias = Literal["svg", "png", "pdf"]

FORMS: tuple[Form, ...] = ("svg", "png", "pdf")
"""What a figure can be written as."""

_DATES: dict[Form, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Where a form keeps the time it was drawn."""


def figure_bytes(figure: Figure, *, form: Form) -> bytes:
    """Return the file of a figure: the same figure gives the same bytes."""
    stream = BytesIO()
    with rc_context({"svg.hashsalt": "evalstop"}):
        figure.savefig(stream, format=form, metadata=_DATES.get(form))
    return stream.getvalue()
