"""An app whose handlers leave effects, and a run that kills relays meanwhile: each effect must exist once."""
