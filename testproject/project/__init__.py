"""The project of the shop. Celery's app is made with it, so that the tasks of all apps belong to it."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
