"""From addresses to a store: protocols, names, replicas, and what does not fit together."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow.flight as flight
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.cli.proxy import Proxy
from headwater.data.index import Index
from headwater.data.pipeline import library_versions
from headwater.engine.chain import Chain
from headwater.errors import (
    DatasetError,
    DatasetNotFound,
    HeadwaterError,
    Incompatible,
    Refused,
    Unreachable,
    WrongUse,
)
from headwater.store.client.address import Secret
from headwater.store.client.link import Link
from headwater.store.client.opening import greet, open_stores
from headwater.store.client.remote import RemoteStore
from headwater.store.client.status import status
from headwater.store.wire import messages, pages, payloads
from headwater.store.wire.catalogue import digests
from headwater.store.wire.messages import PROTOCOLS, DatasetFacts, Hello, IndexRequest, Request, Welcome
from headwater.store.wire.payloads import Parcel
from stores import make_certificates
from understudy import Understudy, complain, playing

LINK = Link(deadline_seconds=3.0, give_up_seconds=3.0)


def make_index(name: str, count: int = 5) -> Index:
    return Index.build([f"{name}-{number}.jpg" for number in range(count)], np.arange(count) + 1)


def welcome(datasets: dict[str, Index], **changes: Any) -> Welcome:
    facts = {
        name: DatasetFacts(len(index), int(index.sizes.sum()), index.version, pages.content_of(index))
        for name, index in datasets.items()
    }
    libraries, codecs = library_versions(), ["none", "zstd"]
    said = Welcome(1, "0.1", digests(), libraries, codecs, facts, 1 << 20, 100, limits=True)
    return msgspec.structs.replace(said, **changes)


Play = Callable[..., Understudy]


@pytest.fixture
def play() -> Iterator[Play]:
    """Starts stores that serve these indexes; a sample's file is its key."""
    with ExitStack() as stack:

        def start(datasets: dict[str, Index], **changes: Any) -> Understudy:
            def answer(server: Understudy, request: Request) -> list[Any]:
                index = datasets[request.dataset]
                if isinstance(request, IndexRequest):
                    return [pages.index_page(index, 0, 0, pages.index_schema(index, first=True))]
                ids = np.frombuffer(request.ids, "<i8")
                files = [index.key(position).encode() for position in index.position_of(ids)]
                return [payloads.pack(Parcel(ids, files), payloads.seal_of(messages.encode(request)))]

            said = messages.encode(welcome(datasets, **changes))
            return stack.enter_context(playing(answer, {"hello": lambda body: said}))

        yield start


def open_(*uris: str) -> Any:
    return open_stores(uris, Secret(None, {}), LINK, progress=False)


def say_otherwise(server: Understudy, **changes: Any) -> None:
    """Let a store of photos greet with other facts of them."""
    greeting = messages.decode(Welcome, server.actions["hello"](b""))
    facts = msgspec.structs.replace(greeting.datasets["photos"], **changes)
    changed = messages.encode(msgspec.structs.replace(greeting, datasets={"photos": facts}))
    server.actions["hello"] = lambda body: changed


class TestAgreement:
    OTHERS: ClassVar = {**digests(), "resize": "other"}

    def test_a_difference_is_said_when_a_dataset_is_opened_and_once(self, play: Play) -> None:
        assert "torch" in sys.modules, "it would be said later"
        server = play({"photos": make_index("a")}, catalogue=self.OTHERS)
        with pytest.warns(UserWarning, match=r"this trainer differ in resize \(its bytes differ") as said:
            opened = [open_(server.uri) for _ in range(2)]
        assert len(said) == 1
        chain = Chain(T.Compose([T.RandomResizedCrop(20)]).samplewise)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader = opened[0].reader(chain, [hw.Offload(3)])
        assert reader.cutting.reach == 2
        for store in opened:
            store.close()

    def test_torch_is_not_loaded_for_it(self, play: Play, tmp_path: Path) -> None:
        server = play({"photos": make_index("a")}, catalogue=self.OTHERS)
        program = (
            "import sys, headwater as hw\n"
            f"hw.open('{server.uri}', progress=False).close()\n"
            "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
        )
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "HEADWATER_CACHE": str(tmp_path)}
        subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment)

    def test_the_first_loader_says_it_then_before_it_asks_for_a_sample(
        self, play: Play, tmp_path: Path
    ) -> None:
        """Once, and whether it offloads or not."""
        server = play({"photos": make_index("a")}, catalogue=self.OTHERS)
        program = (
            "import sys, warnings, headwater as hw\n"
            f"data = hw.open('{server.uri}', progress=False)\n"
            "assert 'torch' not in sys.modules\n"
            "with warnings.catch_warnings(record=True) as said:\n"
            "    warnings.simplefilter('always', UserWarning)\n"
            "    loaders = [hw.DataLoader(data) for _ in range(2)]\n"
            "print(*(one.message for one in said), sep='\\n')"
        )
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "HEADWATER_CACHE": str(tmp_path)}
        ended = subprocess.run(
            [sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True
        )
        (said,) = (line for line in ended.stdout.splitlines() if "differ" in line)
        assert said.startswith(f"store 127.0.0.1:{server.port} and this trainer differ in resize (its bytes")
        assert {type(request) for request in server.asked} == {IndexRequest}


class TestVersion:
    """That of the software, which decides nothing."""

    def test_another_one_is_said_once(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        server = play({"photos": make_index("a")}, version="9.0\x1b[2J")
        for _ in range(2):
            open_(server.uri).close()
        said = f"127.0.0.1:{server.port} has headwater 9.0[2J, this client {hw.__version__}"
        assert caplog.messages == [said]

    def test_the_same_is_not_mentioned(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        open_(play({"photos": make_index("a")}, version=hw.__version__).uri).close()
        assert not caplog.messages


class TestProtocol:
    def test_the_client_says_what_it_speaks(self, play: Play) -> None:
        said: list[Hello] = []
        server = play({"photos": make_index("a")})
        reply = server.actions["hello"]
        server.actions["hello"] = lambda body: said.append(messages.decode(Hello, body)) or reply(body)
        connection = server.connect(LINK)
        assert greet(connection).protocol == 1
        assert said[0].protocols == list(PROTOCOLS)
        assert said[0].version == hw.__version__
        connection.close()

    def test_a_store_that_only_speaks_another_refuses_by_name(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        text = "store 9.0 speaks protocols [99], client 0.1 [1]; upgrade the older one"
        refuse = complain("Incompatible", text)
        server.actions["hello"] = lambda body: refuse(server, None)  # type: ignore[arg-type, return-value]
        with pytest.raises(Incompatible, match=r"speaks protocols \[99\]"):
            open_(server.uri)

    def test_a_store_that_answers_in_another_is_refused_by_name(self, play: Play) -> None:
        server = play({"photos": make_index("a")}, protocol=99, version="9.0")
        with pytest.raises(Incompatible, match=r"headwater 9\.0\) speaks protocol 99, this client \[1\]"):
            open_(server.uri)

    def test_something_that_is_no_welcome(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        server.actions["hello"] = lambda body: b"\x93nonsense"
        with pytest.raises(HeadwaterError, match="no Welcome"):
            open_(server.uri)

    def test_nobody_there(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        uri = server.uri
        server.shutdown()
        link = Link(deadline_seconds=0.5)
        with pytest.raises(Unreachable, match=r"does not answer.*is the store running"):
            open_stores([uri], Secret(None, {}), link)
        with pytest.raises(Unreachable):
            status(uri, link=link)

    def test_a_certificate_that_is_not_trusted_is_not_waited_for(self, tmp_path: Path) -> None:
        certificates = make_certificates(tmp_path)
        pair = certificates.cert.read_bytes(), certificates.key.read_bytes()
        server = flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
        for ca in (None, certificates.other_ca):
            link = Link(ca=ca, deadline_seconds=5.0)
            with (
                Proxy(("127.0.0.1", server.port)) as proxy,
                pytest.raises(Unreachable, match=r"is not trusted: .*Link\(ca=\.\.\.\) or --ca"),
            ):
                open_stores([f"grpc+tls://127.0.0.1:{proxy.port}"], Secret(None, {}), link)
            assert proxy.connections < 5, "until the deadline there would be some twenty"
        server.shutdown()

    def test_nobody_there_with_tls(self, play: Play) -> None:
        """No certificate was seen, so it may be that the store is just starting."""
        server = play({"photos": make_index("a")})
        uri = server.uri.replace("grpc:", "grpc+tls:")
        server.shutdown()
        with pytest.raises(Unreachable, match=r"does not answer.*is the store running.*Link\(ca=\.\.\.\)"):
            open_stores([uri], Secret(None, {}), Link(deadline_seconds=0.5))

    def test_an_altered_greeting_is_asked_for_again(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        honest = messages.sealed(messages.decode(Welcome, server.actions["hello"](b"")))
        altered = msgspec.structs.replace(honest, request_samples=honest.request_samples + 1)
        said = [messages.encode(honest), b"\x00", messages.encode(altered)]
        server.actions["hello"] = lambda body: said.pop() if len(said) > 1 else said[0]
        connection = server.connect(LINK)
        assert greet(connection).request_samples == honest.request_samples
        assert len(said) == 1
        connection.close()


class TestNames:
    def test_the_only_one_needs_no_name(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        for uri in (server.uri, f"{server.uri}/", f"{server.uri}/photos"):
            store = open_(uri)
            assert store.known.name == "photos"
            assert store.uri == f"{server.uri}/photos"
            store.close()

    def test_one_of_several(self, play: Play) -> None:
        server = play({"photos": make_index("a"), "more": make_index("b")})
        store = open_(f"{server.uri}/more")
        assert store.index.key(0) == "b-0.jpg"
        store.close()
        with pytest.raises(DatasetNotFound, match="there are more, photos"):
            open_(server.uri)

    def test_one_that_is_not_there(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        with pytest.raises(DatasetNotFound, match=r"no dataset 'phtos' at .*there are photos"):
            open_(f"{server.uri}/phtos")

    def test_none_that_this_token_may_read(self, play: Play) -> None:
        server = play({})
        with pytest.raises(DatasetNotFound, match="this token may read none"):
            open_(server.uri)

    def test_no_address_at_all(self) -> None:
        with pytest.raises(WrongUse, match="empty list"):
            open_()


class TestReplicas:
    def test_the_same_version_makes_replicas(self, play: Play) -> None:
        index = make_index("a")
        servers = [play({"photos": index}) for _ in range(3)]
        store = open_(*(server.uri for server in servers))
        assert isinstance(store, RemoteStore)
        assert len(store.replicas.all) == 3
        assert store.uri.split("\n") == [f"{server.uri}/photos" for server in servers]
        assert [bytes(file) for file in store.read(np.array([4, 0]))] == [b"a-4.jpg", b"a-0.jpg"]
        store.close()

    def test_they_can_do_what_all_can(self, play: Play) -> None:
        index = make_index("a")
        servers = [
            play({"photos": index}, request_bytes=500, codecs=["none", "x"], cores=4.0),
            play({"photos": index}, catalogue={**digests(), "pad": "other"}, request_samples=7, cores=2.0),
        ]
        differs = rf"store 127\.0\.0\.1:{servers[1].port} and this trainer differ in pad \(its bytes differ\)"
        with pytest.warns(UserWarning, match=differs) as said:
            store = open_(*(server.uri for server in servers))
        assert len(said) == 1
        known = store.known
        assert (known.request_bytes, known.request_samples, known.cores) == (500, 7, 2.0)
        chain = Chain(T.Compose([T.Pad(3)]).samplewise)
        with pytest.warns(UserWarning, match=rf"^store 127\.0\.0\.1:{servers[0].port} has no codec zstd"):
            reader = store.reader(chain, [hw.Offload(2, "zstd")])
        assert reader.cutting.ways == (hw.Offload(1),)
        store.close()

    def test_they_go_by_one_name(self, play: Play) -> None:
        index = make_index("a")
        servers = [play({"photos": index}), play({"fotos": index})]
        with pytest.raises(WrongUse, match="fotos and photos"):
            open_(*(server.uri for server in servers))

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"fields": ["json"]}, "fields"),
            ({"content": "other"}, "labels, class names, columns or sizes"),
            ({"blocks": True}, "blocks"),
            ({"fields": ["json"], "blocks": True}, "fields and blocks"),
        ],
        ids=str,
    )
    def test_they_agree_in_what_decides_a_batch(self, play: Play, change: dict[str, Any], what: str) -> None:
        servers = [play({"photos": make_index("a")}) for _ in range(2)]
        say_otherwise(servers[1], **change)
        one, two = (rf"127\.0\.0\.1:{server.port}" for server in servers)
        with pytest.raises(DatasetError, match=rf"stores {one} and {two} .* differ in {what}; serve"):
            open_(*(server.uri for server in servers))

    def test_what_a_store_keeps_in_memory_may_differ(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}) for _ in range(2)]
        say_otherwise(servers[1], cached_bytes=1)
        open_(*(server.uri for server in servers)).close()

    def test_disjoint_ones_are_shards(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}), play({"photos": make_index("b", 3)})]
        store = open_(*(server.uri for server in servers))
        assert len(store.index) == 8
        read = [bytes(file).decode() for file in store.read(np.arange(8))]
        assert read == [store.key(position) for position in range(8)]
        store.close()

    def test_replicas_of_shards(self, play: Play) -> None:
        one, two = make_index("a"), make_index("b", 3)
        servers = [play({"photos": index}) for index in (one, two, one, two)]
        store = open_(*(server.uri for server in servers))
        assert sorted(len(part.replicas.all) for part in store.stores) == [2, 2]
        store.close()

    def test_partial_overlap_is_an_error(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}), play({"photos": make_index("a", 3)})]
        with pytest.raises(HeadwaterError, match="3"):
            open_(*(server.uri for server in servers))


def refuse(body: bytes) -> bytes:
    raise flight.FlightUnauthenticatedError("this token does not let you in")


def speak_otherwise(body: bytes) -> bytes:
    return messages.encode(welcome({"photos": make_index("a")}, protocol=99))


def serve_others(body: bytes) -> bytes:
    return messages.encode(welcome({"others": make_index("a"), "more": make_index("a")}))


class TestAway:
    """A store that does not answer, or refuses: a replica if it was one when last seen, else an error."""

    @pytest.fixture(autouse=True)
    def own_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What another test has seen at a port that the system gives out again is not remembered."""
        monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))

    @pytest.mark.parametrize(
        ("trouble", "kind"),
        [(refuse, Refused), (speak_otherwise, Incompatible), (serve_others, DatasetNotFound)],
    )
    def test_a_replica_that_refuses(
        self,
        play: Play,
        trouble: Callable[[bytes], bytes],
        kind: type[HeadwaterError],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        index = make_index("a")
        servers = [play({"photos": index}), play({"photos": index})]
        uris = [server.uri for server in servers]
        open_(*uris).close()
        caplog.clear()
        servers[0].actions["hello"] = trouble
        store = open_(*uris)
        (said,) = (line for line in caplog.messages if "replica" in line)
        assert said.startswith(f"127.0.0.1:{servers[0].port} is a replica and is used when it is back: ")
        assert len(store.replicas.all) == 2
        assert [bytes(file).decode() for file in store.read(np.arange(2))] == [store.key(0), store.key(1)]
        store.close()
        servers[1].actions["hello"] = trouble
        with pytest.raises(kind) as caught:
            open_(*uris)
        assert not hasattr(caught.value, "__notes__")

    def test_one_that_refuses_and_could_hold_anything(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}), play({"photos": make_index("b")})]
        servers[1].actions["hello"] = refuse
        with pytest.raises(Refused) as caught:
            open_(*(server.uri for server in servers))
        assert "whether it holds the same samples" in caught.value.__notes__[0]

    def test_a_refusal_tells_more_than_silence(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}), play({"photos": make_index("a")})]
        uris = [server.uri for server in servers]
        servers[0].shutdown()
        servers[1].actions["hello"] = refuse
        with pytest.raises(Refused):
            open_(*uris)

    def test_a_replica_that_was_seen_before(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        index = make_index("a")
        servers = [play({"photos": index}), play({"photos": index})]
        uris = [server.uri for server in servers]
        open_(*uris).close()
        servers[1].shutdown()
        store = open_(*uris)
        assert "is a replica and is used when it is back" in caplog.text
        assert [bytes(file).decode() for file in store.read(np.arange(2))] == [store.key(0), store.key(1)]
        store.close()

    def test_one_that_could_hold_anything(self, play: Play) -> None:
        servers = [play({"photos": make_index("a")}), play({"photos": make_index("b")})]
        uris = [server.uri for server in servers]
        servers[1].shutdown()
        with pytest.raises(Unreachable) as caught:
            open_(*uris)
        assert "whether it holds the same samples" in caught.value.__notes__[0]

    def test_a_replica_that_now_serves_something_else(
        self, play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        index = make_index("a")
        servers = [play({"photos": index}), play({"photos": index})]
        store = open_(*(server.uri for server in servers))
        servers[0].usual = complain("DatasetStale", "another version")
        for _ in range(4):
            assert bytes(store.read(np.arange(1))[0]).decode() == store.key(0)
        assert f"{servers[0].port} is not asked for a while: another version" in caplog.text
        store.close()


class TestOpen:
    def test_what_the_store_was_told_already(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        with pytest.raises(WrongUse, match="fields, split: a store was told this"):
            hw.open(server.uri, "train", fields=["json"])

    def test_stores_and_data_do_not_mix(self, play: Play) -> None:
        server = play({"photos": make_index("a")})
        with pytest.raises(WrongUse, match="open each kind by itself"):
            hw.open([server.uri, "photos/"])
