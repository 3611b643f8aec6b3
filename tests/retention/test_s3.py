"""An archive on S3, by django-storages as in the guide.

moto stands for AWS, or the server that AWS_ENDPOINT_URL names.
"""

from collections.abc import Iterator

import pytest
from django.conf.global_settings import STORAGES
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import Status
from django_outbox.retention.archive.restoring import read_messages, restore
from django_outbox.retention.archive.storage import InvalidArchive
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.publishers.subjects.base import unique_name
from tests.support.archives import PUBLISHERS, archives, processed, storage_of
from tests.support.aws.server import CREDENTIALS, REGION, client, endpoint_url
from tests.support.messages import rows

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

USING = "postgresql"


@pytest.fixture
def bucket() -> Iterator[str]:
    """A new bucket, which the archive is in."""
    s3, name = client("s3"), unique_name().replace(".", "-").replace("_", "-").lower()
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    options = {
        "bucket_name": name,
        "location": "outbox",
        "default_acl": "private",
        "file_overwrite": False,
        "querystring_auth": True,
        "max_memory_size": 8 * 1024 * 1024,
        "endpoint_url": endpoint_url(),
        "region_name": REGION,
        "access_key": CREDENTIALS["aws_access_key_id"],
        "secret_key": CREDENTIALS["aws_secret_access_key"],
    }
    storage = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    outbox = {"PUBLISHERS": PUBLISHERS, "ARCHIVE": {"storage": "outbox_archive"}}
    with override_settings(STORAGES={**STORAGES, "outbox_archive": storage}, OUTBOX=outbox):
        yield name
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        for each in page.get("Contents", []):
            s3.delete_object(Bucket=name, Key=each["Key"])
    s3.delete_bucket(Bucket=name)


def test_purged_messages_come_back_from_s3_as_they_were(bucket: str):
    old = processed(USING, 50, key="order-7", payload={"text": "x" * 1000})
    before = list(OutboxMessage.objects.using(USING).values("id", "message_id", "type", "key", "payload", "headers"))
    assert purge(using=USING) == 50
    assert rows(USING) == {}
    (found,) = archives(USING)
    names = [each["Key"] for each in client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(names) == 2
    assert all(name.startswith(f"outbox/{found.name}") for name in names)
    messages = read_messages(storage_of(USING), found.name, [row["message_id"] for row in before])
    assert [message.id for message in messages] == old
    assert restore(messages, Status.FAILED, using=USING) == 50
    after = OutboxMessage.objects.using(USING).values("id", "message_id", "type", "key", "payload", "headers")
    assert sorted(after, key=lambda row: row["id"]) == sorted(before, key=lambda row: row["id"])


def test_a_file_that_is_not_in_the_bucket_is_named(bucket: str):
    with pytest.raises(InvalidArchive, match=r"STORAGES\['outbox_archive'\] has no manifest default/a.manifest.json"):
        read_messages(storage_of(USING), "default/a.jsonl.gz", [])


def test_a_bucket_that_is_gone_keeps_the_messages_in_the_table(bucket: str):
    old = processed(USING, 3)
    client("s3").delete_bucket(Bucket=bucket)
    with pytest.raises(ArchiveUnavailable):
        purge(using=USING)
    assert sorted(rows(USING)) == old
    client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    assert purge(using=USING) == 3
