"""The files and the environment of a RabbitMQ node that shares nothing with other nodes of the machine."""

import os
from pathlib import Path

# Where Debian keeps what its wrappers in PATH run as another user.
SCRIPTS = ("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "usr/lib/rabbitmq/bin")


def make_home(home: Path, *, port: int, settings: str = "") -> None:
    """Create the folder of a node with its configuration.

    Args:
        home: the folder, which must not exist.
        port: where clients connect.
        settings: further lines of `rabbitmq.conf`.
    """
    home.mkdir(mode=0o700)
    (home / "enabled_plugins").write_text("[].\n")
    (home / "env.conf").touch()
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{port}\n"
        f"log.console = false\nlog.file.level = info\ndisk_free_limit.absolute = 1MB\n{settings}"
    )


def node_environment(
    home: Path, *, name: str, port: int, distribution: int, epmd: int, logs: Path, cookie: str = ""
) -> dict[str, str]:
    """Return the environment variables of a node and of its `rabbitmqctl`.

    Args:
        home: its folder.
        name: its Erlang name.
        port: where clients connect.
        distribution: the port for other nodes.
        epmd: the port of its Erlang port mapper.
        logs: the folder of its logs.
        cookie: the cookie that nodes of a cluster share; each node has its own by default.
    """
    set_cookie = f" -setcookie {cookie}" if cookie else ""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
        "HOME": str(home),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # The node shares the machine with everything that is tested with it.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none{set_cookie}",
        **({"RABBITMQ_CTL_ERL_ARGS": set_cookie.strip()} if cookie else {}),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(logs),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
        "LANG": "C.UTF-8",
    }
