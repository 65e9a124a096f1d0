"""`taslak info`: what this machine has, which path computes, and where files are kept."""

from __future__ import annotations

from importlib.metadata import version

FEATURES = (
    *("avx2", "fma3", "f16c", "avx_vnni"),
    *("avx512_f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
)
"""Of a processor, those that decide how fast products are."""


def info() -> None:
    """Say what runs here: processor, native kernels or PyTorch; and the cache folder, with its size."""
    import torch

    from taslak import native
    from taslak.engine.usage import processor
    from taslak.models.loading import cache_home
    from taslak.models.loading.storage import folder_size, megabytes

    home = cache_home()
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    features = [name for name in FEATURES if found.get(name) is True]
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    facts = {
        "taslak": version("taslak"),
        "runs": native.describe(),
        "processor": processor(),
        "features": ", ".join(features) or "none known",
        "cores": f"{native.cores()} physical, for this process",
        "PyTorch": f"{torch.__version__}, {torch.get_num_threads()} threads, CUDA: {cuda}",
        "cache": f"{home}, {megabytes(folder_size(home))} (set TASLAK_HOME to change it)",
    }
    for folder in sorted(path for path in home.glob("*") if path.is_dir()):
        facts[f"  {folder.name}"] = megabytes(folder_size(folder))
    for key, value in facts.items():
        print(f"{key:<12} {value}")
    _costs()


def _costs() -> None:
    """What was measured of the models that ran here."""
    from taslak.control.calibrate import remembered

    for key, known in remembered():
        costs = known.costs
        threads = key["threads"][0] or key["threads"][1]
        print(f"\n{key['model']}, {key['weights'][0]}, {key['method']}, {threads} threads:")
        ahead = ", ".join(f"{rows} rows {costs.pass_(rows) / costs.pass_(1):.2f}" for rows in (2, 5, 9, 17))
        far = costs.pass_(1, 4096) / costs.pass_(1)
        prompt = costs.pass_(257, prompt=256) - costs.pass_(1)
        print(
            f"  a pass     {1e3 * costs.pass_(1):.1f} ms; times that: {ahead}; behind 4096 tokens {far:.2f}"
        )
        print(f"  a prompt   {1e3 * prompt:.1f} ms for 256 tokens taken in beside a row that decodes")
        for name, draft in costs.drafters.items():
            print(
                f"  {name:<10} {1e3 * draft(1):.2f} ms for one token, {1e3 * draft.level:.2f} for each more"
            )
        for mode, rest in costs.rest.items():
            drafted = f"{1e3 * rest.drafted:.2f} with a draft, {1e3 * rest.row:.3f} for each further token"
            print(f"  the rest   {1e3 * rest.plain:.2f} ms a step, {drafted} ({mode})")
