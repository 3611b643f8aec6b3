"""The shop's project. It creates the Celery app, so that the tasks of all apps belong to it."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
