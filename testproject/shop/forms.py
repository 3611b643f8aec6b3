"""What an order must look like."""

from typing import Any

from django import forms

from shop.models import Order


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]
    """Checks the fields of an order."""

    class Meta:
        model = Order
        fields = ["customer", "item", "quantity", "total", "note"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A note is kept as it was written, white space and all.
        self.fields["note"].strip = False  # type: ignore[attr-defined]
