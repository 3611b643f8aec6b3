"""Only the admin: the outbox has no pages of its own."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
