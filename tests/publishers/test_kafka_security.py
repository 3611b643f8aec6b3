"""The Kafka publisher on a broker of Apache Kafka that asks for TLS and logins, and refuses topics."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.jars import KAFKA
from tests.support.kafka import tools
from tests.support.kafka.cluster import running_cluster
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not KAFKA.is_usable, reason=KAFKA.remedy),
]

PASSWORD = "s3cret"


class Secured(NamedTuple):
    """A cluster.

    Attributes:
        admin: an address where everything is allowed.
        sasl: one for users.
        tls: one for certificates of clients.
        folder: where the certificates are.
    """

    admin: str
    sasl: str
    tls: str
    folder: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("broker", "shop", "authority"):
        make_certificate(folder, name, "IP:127.0.0.1")
    make_certificate(folder, "expired", "IP:127.0.0.1", issuer="authority", is_expired=True)
    (folder / "broker-both.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.pem").read_text())
    trusted = ("broker", "shop", "authority")
    (folder / "trusted.pem").write_text("".join((folder / f"{name}.pem").read_text() for name in trusted))
    sasl, tls = free_port(), free_port()
    settings = {
        "listeners": f"SASL_SSL://127.0.0.1:{sasl},SSL://127.0.0.1:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker-both.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "trusted.pem",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
    }
    with running_cluster(settings, count=1) as cluster:
        admin = tools.admin(cluster.servers)
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("shop", credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([change])["shop"].result(60)
        yield Secured(cluster.servers, f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", folder)


MakePublisher = Callable[..., KafkaPublisher]


@pytest.fixture
def make_publisher() -> Iterator[MakePublisher]:
    made = []

    def make(config: dict[str, Any]) -> KafkaPublisher:
        publisher = KafkaPublisher("default", config=config, timeout=8.0)
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close()


def with_login(secured: Secured, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.folder / "broker.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "shop",
        "sasl.password": password,
    }


def with_certificate(secured: Secured, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.folder / "broker.pem"),
        "ssl.certificate.location": str(secured.folder / f"{name}.pem"),
        "ssl.key.location": str(secured.folder / f"{name}.key"),
    }


def allow(secured: Secured, user: str) -> str:
    """Create a topic that a user may write to, with the permissions that the guide names, and return it."""
    topic = tools.create_topic(secured.admin, unique_name(), 1)
    admin = tools.admin(secured.admin)
    rules = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    for created in admin.create_acls(rules).values():
        created.result(60)
    return topic


def test_a_user_with_a_password_publishes_over_tls(secured: Secured, make_publisher: MakePublisher):
    topic = allow(secured, "shop")
    publisher = make_publisher(with_login(secured))
    assert publisher.prepare() == ""
    message = make_message(topic, b"1", key="k")
    eventually(lambda: publisher.publish([message]) == [ACCEPTED], "the permission is known to the broker")


def test_a_wrong_password_is_an_outage_with_a_remedy_and_is_shown_nowhere(
    secured: Secured, make_publisher: MakePublisher
):
    publisher = make_publisher(with_login(secured, password="wr0ng"))
    reason = publisher.prepare()
    assert "Authentication failed" in reason
    assert "sasl options in config" in reason
    assert "wr0ng" not in reason
    (outcome,) = publisher.publish([make_message(unique_name())])
    assert outcome.kind is OutcomeKind.UNANSWERED


def test_a_topic_that_is_refused_holds_up_no_topic_that_is_allowed(secured: Secured, make_publisher: MakePublisher):
    allowed, refused = allow(secured, "shop"), tools.create_topic(secured.admin, unique_name(), 1)
    publisher = make_publisher(with_login(secured))
    ready = make_message(allowed, b"0")
    eventually(lambda: publisher.publish([ready]) == [ACCEPTED], "the permission is known to the broker")
    batch = [make_message(topic, str(n).encode()) for n in range(10) for topic in (allowed, refused)]
    outcomes = publisher.publish(batch)
    assert outcomes[::2] == [ACCEPTED] * 10
    assert {outcome.kind for outcome in outcomes[1::2]} == {OutcomeKind.DEFERRED}
    assert len(tools.read_topic(secured.admin, allowed, {})) >= 11


def test_a_client_is_recognized_by_its_certificate(secured: Secured, make_publisher: MakePublisher):
    topic = allow(secured, "CN=shop")
    publisher = make_publisher(with_certificate(secured, "shop"))
    message = make_message(topic, b"1")
    eventually(lambda: publisher.publish([message]) == [ACCEPTED], "the permission is known to the broker")


def test_an_expired_certificate_of_a_client_is_an_outage_with_a_remedy(secured: Secured, make_publisher: MakePublisher):
    publisher = make_publisher(with_certificate(secured, "expired"))
    assert "whether a certificate has expired" in publisher.prepare()
    (outcome,) = publisher.publish([make_message(unique_name())])
    assert outcome.kind is OutcomeKind.UNANSWERED
