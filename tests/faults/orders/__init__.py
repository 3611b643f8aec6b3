"""Shop, RabbitMQ and billing under kills: each committed order gets one invoice."""
