"""What an outbox reports about itself: to people, to monitoring systems and to tracing systems."""
