"""A Content Security Policy for the pages of a test."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse


def add_policy(get_response: Any) -> Any:
    """Middleware that sends the policy in the setting POLICY, if there is one."""

    def respond(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        if policy := getattr(settings, "POLICY", ""):
            response.headers["Content-Security-Policy"] = policy
        return response

    return respond
