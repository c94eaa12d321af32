"""Low-rank adapters of a server: how they are loaded, and how a request names one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import EngineFailed, Refused, Server

WEIGHTS = "adapter_model.safetensors"


class LoadedByName:
    """vLLM's: `POST /load_lora_adapter`, and a request names an adapter as its model. It refuses an
    unknown one itself."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.names: set[str] = set()

    def load(self, name: str, path: str) -> None:
        """Makes the adapter in a folder of PEFT's known by a name."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": name in self.names}
        self._server.tell("/load_lora_adapter", body)
        self.names.add(name)

    def unload(self, name: str) -> None:
        self._server.tell("/unload_lora_adapter", {"lora_name": name})
        self.names.discard(name)

    def refusal(self, name: str | None) -> str | None:  # noqa: ARG002
        """Returns why a request that names it is not sent, or None."""
        return None

    def fields(self, name: str | None) -> dict[str, Any]:
        return {} if name is None else {"model": name}


class KnownByNumber:
    """llama.cpp's: a server is started with its adapters, and a request gives each a scale by its
    number. Names are those of this client. A request without one says nothing of any, or, where
    `names_all`, a scale of 0 of each.

    Beside each FILE.gguf lies the folder FILE that it was made of, by which its number is found.
    """

    def __init__(self, server: Server, names_all: bool = False) -> None:
        self._names_all = names_all
        try:
            listed = server.at_root().ask("GET", "/lora-adapters")
            places = {int(each["id"]): Path(each["path"]).with_suffix("") for each in listed}
            self._numbers = {(each / WEIGHTS).read_bytes(): number for number, each in places.items()}
        except (EngineFailed, Refused, TypeError, KeyError, OSError) as error:
            raise UsageError(
                f"adapters is 'llama.cpp', which needs its server, started with --lora for each, and "
                f"the folder of PEFT's beside each file: {error}"
            ) from None
        self.names: dict[str, int] = {}

    def load(self, name: str, path: str) -> None:
        """Raises `ValueError` for one that the server was not started with."""
        number = self._numbers.get((Path(path) / WEIGHTS).read_bytes())
        if number is None:
            raise ValueError(f"the server was not started with the adapter in {path}")
        self.names[name] = number

    def unload(self, name: str) -> None:
        self.names.pop(name, None)

    def refusal(self, name: str | None) -> str | None:
        is_known = name is None or name in self.names
        return None if is_known else f"the adapter {name!r} is not loaded"

    def fields(self, name: str | None) -> dict[str, Any]:
        scales = dict.fromkeys(self._numbers.values(), 0.0) if self._names_all else {}
        if name is not None:
            scales[self.names[name]] = 1.0
        return {"lora": [{"id": number, "scale": scale} for number, scale in scales.items()]}


KINDS: dict[str, Callable[[Server], LoadedByName | KnownByNumber]] = {
    "vllm": LoadedByName,
    "llama.cpp": KnownByNumber,
    "llama.cpp-all": partial(KnownByNumber, names_all=True),
}
