"""The admin, and the pages that machines read."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("outbox/", include("django_outbox.urls"))]
