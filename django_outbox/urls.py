"""The pages that machines read: `path("outbox/", include("django_outbox.urls"))`."""

from django.urls import path

from django_outbox.monitoring import views

app_name = "django_outbox"

urlpatterns = [
    path("health/", views.health, name="health"),
    path("metrics/", views.metrics, name="metrics"),
]
