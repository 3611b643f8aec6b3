"""Validation of orders."""

from typing import Any

from django import forms

from shop.models import Order


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]
    """Validate the fields of an order."""

    class Meta:
        model = Order
        fields = ["customer", "item", "quantity", "total", "note"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Keep a note as it was written, including white space.
        self.fields["note"].strip = False  # type: ignore[attr-defined]
