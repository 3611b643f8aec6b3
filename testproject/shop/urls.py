"""The pages of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("orders/", views.place_order, name="place_order"),
]
