"""The Hugging Face Hub: whole checkpoints by id (`org/name`), and single files of packs.

Everything goes through huggingface_hub, so its settings (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
proxies) hold here too. The package is imported on first use: it is slow to import.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taslak.errors import CheckpointError, DownloadError, ModelNotFound, TaslakError
from taslak.models.loading import huggingface, storage
from taslak.models.loading.storage import Progress

# How long an unreachable Hub may hold things up before it counts as unreachable, in seconds.
REACH_SECONDS = 5.0
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What a checkpoint consists of here. Weights in other formats, and the original-format copies some
# repositories keep in subfolders, are left where they are.
CHECKPOINT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


def is_hub_id(name: str) -> bool:
    """Whether `name` is spelled like `org/name`."""
    return HUB_ID.fullmatch(name) is not None


def snapshot(repo: str, progress: Progress | None = None) -> Path:
    """The folder of a Hub checkpoint in huggingface_hub's own cache, downloaded where it is not there.

    A complete cached snapshot is used as it is, without asking the Hub. Raises ModelNotFound (no such
    repository, or no access), DownloadError (unreachable), DiskError, CheckpointError (nothing usable in it).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    allowed = list(CHECKPOINT_FILES)
    try:
        folder = Path(snapshot_download(repo, local_files_only=True, allow_patterns=allowed))
        huggingface.check_folder(folder)
        return folder
    except (LocalEntryNotFoundError, CheckpointError):
        pass  # absent or incomplete: ask the Hub
    with _hub_errors(repo):
        _reach(repo, "config.json")
        listed = snapshot_download(repo, allow_patterns=allowed, etag_timeout=REACH_SECONDS, dry_run=True)
        assert isinstance(listed, list)
        missing = sum(file.file_size or 0 for file in listed if not file.is_cached)
        from huggingface_hub import constants

        cache = storage.make_folder(Path(constants.HF_HUB_CACHE))
        storage.require_free(cache, missing, f"the model {repo}")
        folder = Path(
            snapshot_download(
                repo,
                allow_patterns=allowed,
                etag_timeout=REACH_SECONDS,
                tqdm_class=_reporting_tqdm(f"downloading {repo}", progress),
            )
        )
    huggingface.check_folder(folder)
    return folder


def download_file(repo: str, file: str, folder: Path, progress: Progress | None = None) -> Path:
    """One file of a Hub repository, put into `folder`; an interrupted download is resumed.

    Raises DownloadError, quickly, where the Hub is unreachable or HF_HUB_OFFLINE is set, and ModelNotFound's
    cases too as DownloadError: the caller has another source to try.
    """
    from huggingface_hub import hf_hub_download

    try:
        with _hub_errors(repo):
            _reach(repo, file)
            bar = _reporting_tqdm(f"downloading {file}", progress)
            return Path(
                hf_hub_download(repo, file, local_dir=folder, etag_timeout=REACH_SECONDS, tqdm_class=bar)
            )
    except ModelNotFound as error:
        raise DownloadError(str(error)) from error


def _reach(repo: str, file: str) -> None:
    """One question to the Hub without retries, so that being offline is found out within seconds."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
    with contextlib.suppress(EntryNotFoundError):  # then it answered, which is what was asked
        get_hf_file_metadata(hf_hub_url(repo, file), timeout=REACH_SECONDS)


@contextlib.contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turns whatever huggingface_hub and its HTTP client raise inside the block into taslak's errors."""
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        yield
    except TaslakError:
        raise
    except GatedRepoError as error:
        raise ModelNotFound(
            f"the Hub model {repo} asks for its terms to be accepted first: do so on its page, "
            "then set HF_TOKEN to your access token"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the Hub has no model {repo}, or it is private: check the spelling, "
            "or set HF_TOKEN to an access token that may read it"
        ) from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(
            f"{repo} is not in the local Hub cache and HF_HUB_OFFLINE is set: unset it to download, "
            "or give a local folder"
        ) from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DownloadError(
            f"cannot reach the Hub for {repo} ({reason}): check the network connection, "
            "or give a local folder, a .gguf file or the name of a pack"
        ) from error


def _reporting_tqdm(what: str, progress: Progress | None) -> Any:
    """A progress bar class for huggingface_hub that draws nothing and reports to `progress` instead."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._bytes = options.get("unit") == "B"
            options.pop("name", None)
            super().__init__(*args, **(options | {"disable": True}))
            self.total = options.get("total")

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if progress is not None and self._bytes:
                progress(what, int(self.n), int(self.total) if self.total else None)

    return Reporting
