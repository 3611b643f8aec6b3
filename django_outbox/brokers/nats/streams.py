"""Ask JetStream which stream has a subject: this distinguishes a wrong subject from an outage."""

from django_outbox.brokers.nats.api import STREAM_NOT_FOUND, Api, NoAnswer, NotPermitted
from django_outbox.brokers.nats.responses import BUSY_WAIT
from django_outbox.messages import Outcome, rejected, set_aside, unanswered


class Streams:
    """Finds streams.

    Args:
        api: JetStream's API.
    """

    def __init__(self, api: Api) -> None:
        self._ask = api.ask

    async def judge(self, subject: str, *, stalled: bool) -> Outcome:
        """Return the outcome of messages that no stream has confirmed.

        Args:
            subject: their subject.
            stalled: whether nothing responded to them; otherwise the server knew no subscriber for them.
        """
        try:
            stream = await self._find(subject)
        except NotPermitted as error:
            reason = f"no stream has confirmed the message; whether one has its subject cannot be found out: {error}"
            return set_aside(reason, BUSY_WAIT, error_class="nats.not_confirmed")
        except NoAnswer as error:
            return unanswered(str(error))
        if not stream:
            return rejected(_explain_missing(subject), error_class="nats.no_stream")
        if stalled:
            reason = f"the stream {stream!r} confirms nothing: it is without quorum, has no_ack set, or is busy"
            return set_aside(reason, BUSY_WAIT, error_class="nats.stalled")
        return set_aside(f"the stream {stream!r} has no leader", BUSY_WAIT, error_class="nats.no_leader")

    async def check(self, stream: str, subject: str) -> str:
        """Return what keeps messages from being stored, with the remedy; an empty string if nothing is known.

        Args:
            stream: the stream that has to exist; blank for any.
            subject: the subject of all messages; blank if they have different ones.
        """
        try:
            if stream:
                await self._ask(f"STREAM.INFO.{stream}")
            else:
                await self._ask("INFO")
            found = await self._find(subject) if subject else stream
        except NotPermitted:
            # It may publish nevertheless.
            return ""
        except NoAnswer as error:
            if error.code == STREAM_NOT_FOUND:
                return f"there is no stream {stream!r}; create it, or correct the option stream"
            return str(error)
        if not found and subject:
            return _explain_missing(subject)
        if stream and found != stream:
            return f"the subject {subject!r} is that of the stream {found!r}; correct the option stream or subject"
        return ""

    async def _find(self, subject: str) -> str:
        """Return the name of the stream that has a subject; blank if there is none."""
        found = await self._ask("STREAM.NAMES", {"subject": subject})
        names = found.get("streams") or [""]
        return str(names[0])


def _explain_missing(subject: str) -> str:
    return f"no stream has the subject {subject!r}; add it to a stream's subjects, or correct the option subject"
