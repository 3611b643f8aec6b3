from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/<str:number>/", views.place_order),
    path("async/<str:number>/", views.place_order_async),
]
