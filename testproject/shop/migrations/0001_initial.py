import django.core.validators
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Order',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.UUIDField(default=uuid.uuid4, editable=False, unique=True, verbose_name='number')),
                ('customer', models.CharField(max_length=200, verbose_name='customer')),
                ('item', models.CharField(max_length=200, verbose_name='item')),
                ('quantity', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(1)], verbose_name='quantity')),
                ('total', models.DecimalField(decimal_places=2, max_digits=10, validators=[django.core.validators.MinValueValidator(0)], verbose_name='total')),
                ('note', models.TextField(blank=True, default='', verbose_name='note')),
                ('created', models.DateTimeField(auto_now_add=True, verbose_name='created')),
            ],
            options={
                'verbose_name': 'order',
                'verbose_name_plural': 'orders',
            },
        ),
        migrations.CreateModel(
            name='ReceivedMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('message_id', models.UUIDField(unique=True, verbose_name='message ID')),
                ('type', models.CharField(max_length=255, verbose_name='type')),
                ('key', models.CharField(blank=True, max_length=255, verbose_name='key')),
                ('payload', models.JSONField(verbose_name='payload')),
                ('received_at', models.DateTimeField(auto_now_add=True, verbose_name='received at')),
                ('deliveries', models.PositiveIntegerField(default=0, help_text='More than one: a duplicate.', verbose_name='deliveries')),
            ],
            options={
                'verbose_name': 'received message',
                'verbose_name_plural': 'received messages',
            },
        ),
    ]
