"""Writes the weights of small random models as other programs write them, with an input and the output of each.

    /usr/bin/python3 tests/golden/weights/generate.py

Needs PyTorch and NumPy (Debian: python3-torch). Each model NAME has `NAME.golden.safetensors` (x, timesteps, label,
output; all images NHWC) beside NAME.pt and NAME.toml, or the folder NAME/, and what trajectories.py makes of it.
Outputs are computed in float64.
"""

import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import dialects  # noqa: E402
import safetensors_file  # noqa: E402
import trajectories  # noqa: E402

BATCH = 2


def randomize(model, seed):
    """No parameter is zero, none is exactly what another is, and outputs stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
        spread = 0.3 if parameter.dim() == 1 else 0.7 / math.sqrt(parameter[0].numel())
        with torch.no_grad():
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def write_golden(name, model, height, width, channels, classes, seed, times=(3.0, 741.0), extra=None, conditioning=0,
                 scheduler=None):  # fmt: skip
    generator = torch.Generator().manual_seed(seed + 1000)
    x = torch.randn((BATCH, channels, height, width), generator=generator)
    t = torch.tensor(times)
    labels = torch.tensor([0, classes - 1]) if classes else None
    with torch.no_grad():
        out = model.double()(x.double(), t.double(), labels).float()
    shape = (height, width, channels - conditioning)
    trajectories.write(HERE, name, model, shape, conditioning, classes, out.shape[1] != shape[2], scheduler)
    model.float()
    tensors = {"x": x.permute(0, 2, 3, 1), "timesteps": t, "output": out.permute(0, 2, 3, 1)}
    arrays = {key: value.contiguous().numpy() for key, value in tensors.items()}
    if classes:
        arrays["label"] = labels.numpy().astype(np.int32)
    safetensors_file.write(HERE / f"{name}.golden.safetensors", {}, {**arrays, **(extra or {})})


ADM = dict(
    image_height=8, image_width=8, image_channels=3, conditioning_channels=0, model_channels=8, channel_mult=[1, 2],
    num_res_blocks=1, attention_resolutions=[2], num_heads=2, num_head_channels=0, qkv_order="heads_first", groups=4,
    use_scale_shift_norm=False, conv_resample=True, resblock_updown=False, num_classes=0, learn_sigma=False,
    max_period=10000,
)  # fmt: skip


def write_toml(path, config):
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    path.write_text("[model]\n" + "\n".join(lines) + "\n")


def adm(name, seed, wrap=lambda state: state, names=(dialects.ADM_NAMES, dialects.ADM_ATTENTION), **changes):
    config = {**ADM, **changes}
    model = randomize(dialects.Adm(config, names), seed)
    channels = config["image_channels"] + config["conditioning_channels"]
    write_golden(name, model, config["image_height"], config["image_width"], channels, config["num_classes"], seed,
                 conditioning=config["conditioning_channels"])  # fmt: skip
    torch.save(wrap(model.state_dict()), HERE / f"{name}.pt")
    write_toml(HERE / f"{name}.toml", config)


DIFFUSERS = dict(
    _class_name="UNet2DModel", _diffusers_version="0.30.0", act_fn="silu", add_attention=True, attention_head_dim=4,
    attn_norm_num_groups=None, block_out_channels=[8, 16], center_input_sample=False, class_embed_type=None,
    down_block_types=["DownBlock2D", "AttnDownBlock2D"], downsample_padding=1, downsample_type="conv", dropout=0.0,
    flip_sin_to_cos=True, freq_shift=0, in_channels=3, layers_per_block=1, mid_block_scale_factor=1, norm_eps=1e-5,
    norm_num_groups=4, num_class_embeds=None, num_train_timesteps=None, out_channels=3,
    resnet_time_scale_shift="default", sample_size=8, time_embedding_type="positional",
    up_block_types=["AttnUpBlock2D", "UpBlock2D"], upsample_type="conv",
)  # fmt: skip


def diffusers(name, seed, shards=1, rename=lambda key: key, folder="", scheduler=None, **changes):
    config = {**DIFFUSERS, **changes}
    model = randomize(dialects.UNet2D(config), seed)
    size = config["sample_size"]
    height, width = size if isinstance(size, list) else (size, size)
    write_golden(name, model, height, width, config["in_channels"], config["num_class_embeds"], seed,
                 scheduler=scheduler)  # fmt: skip
    target = HERE / name / folder
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if scheduler:
        place = target.parent / "scheduler" if folder else target
        place.mkdir(exist_ok=True)
        (place / "scheduler_config.json").write_text(json.dumps(scheduler, indent=2) + "\n")
    tensors = {rename(key): value.numpy() for key, value in model.state_dict().items()}
    if shards == 1:
        safetensors_file.write(target / "diffusion_pytorch_model.safetensors", {"format": "pt"}, tensors)
        return
    keys, weight_map = sorted(tensors), {}
    for shard in range(shards):
        file = f"diffusion_pytorch_model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in keys[shard::shards]}
        safetensors_file.write(target / file, {"format": "pt"}, part)
        weight_map.update({key: file for key in part})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (target / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def deflate(path):
    """The same archive with its entries compressed, as a zip program would pack it again."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def hashed(count):
    """Numbers from -1 to 1 that the test makes again, so that 20 MB of them need not be kept."""
    h = (np.arange(count, dtype=np.uint64) * 2654435769 + 12345) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    h ^= h >> 16
    return (h >> 8).astype(np.float64) / 2**23 - 1


def unet_cu(name):
    """unet.cu's model is fixed but for its base width, and 32 is the smallest that its groups and heads allow. The
    golden says how the test makes the file: tensor i of the file is centre[i] + spread[i] * hashed numbers."""
    config = dict(ADM, model_channels=32, channel_mult=[1, 2, 3, 4], num_res_blocks=2, attention_resolutions=[4, 8],
                  num_head_channels=32, qkv_order="qkv_first", groups=32, conv_resample=False, max_period=1000)  # fmt: skip
    model = dialects.Adm(config, (dialects.CU_NAMES, dialects.CU_ATTENTION)).eval()
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    values, at = hashed(sum(sizes)), 0
    centres, spreads = [], []
    for p in parameters:
        centres.append(1.0 if p.dim() == 1 and bool((p == 1).all()) else 0.0)
        spreads.append(0.3 if p.dim() == 1 else 1.2 / math.sqrt(p[0].numel()))
        value = np.float32(centres[-1] + spreads[-1] * values[at : at + p.numel()])
        at += p.numel()
        with torch.no_grad():
            p.copy_(torch.tensor(value).reshape(p.shape))
    description = {"sizes": np.int32(sizes), "centres": np.float64(centres), "spreads": np.float64(spreads)}
    write_golden(name, model, 8, 8, 3, 0, 7, extra=description)


def shares_storage(state):
    """Views of one storage with offsets and strides, as a state_dict() may have them."""
    weight = state["time_embed.0.weight"]
    both = torch.stack([weight.t().contiguous(), torch.zeros_like(weight.t())], dim=0)
    return {**state, "time_embed.0.weight": both[0].t()}


def main():
    adm("adm_plain", 1)
    adm("adm_everything", 2, qkv_order="qkv_first", use_scale_shift_norm=True, resblock_updown=True, num_classes=3,
        learn_sigma=True, num_head_channels=4, image_width=16, wrap=lambda s: {f"module.{k}": v for k, v in s.items()})  # fmt: skip
    adm("adm_half", 3, conv_resample=False, attention_resolutions=[1], channel_mult=[0.5, 1], image_channels=1, groups=2,
        wrap=lambda s: {"model": s, "step": 7, "optimizer": {"state": {}, "lr": 1e-4}})  # fmt: skip
    adm("adm_views", 4, num_res_blocks=2, attention_resolutions=[], wrap=shares_storage)
    adm("adm_upsampler", 5, conditioning_channels=3, low_res_factor=4, resblock_updown=True, learn_sigma=True,
        wrap=lambda s: {f"_orig_mod.{k}": v for k, v in s.items()})  # fmt: skip
    deflate(HERE / "adm_upsampler.pt")
    adm("unet_cu_names", 6, names=(dialects.CU_NAMES, dialects.CU_ATTENTION), conv_resample=False, qkv_order="qkv_first",
        max_period=1000, wrap=lambda s: {f"_orig_mod.{k}": v for k, v in s.items()})  # fmt: skip

    unet_cu("unet_cu")

    diffusers("diffusers_plain", 11)
    diffusers("diffusers_ddpm", 12, attention_head_dim=None, downsample_padding=0, flip_sin_to_cos=False, freq_shift=1,
              norm_eps=1e-3, block_out_channels=[8, 12], down_block_types=["AttnDownBlock2D", "DownBlock2D"],
              up_block_types=["UpBlock2D", "AttnUpBlock2D"], layers_per_block=2, sample_size=[8, 12],
              scheduler=dict(_class_name="DDIMScheduler", beta_start=0.00085, beta_end=0.012,
                             beta_schedule="scaled_linear", num_train_timesteps=400,
                             prediction_type="v_prediction"))  # fmt: skip
    diffusers("diffusers_resnet", 13, down_block_types=["ResnetDownsampleBlock2D", "AttnDownBlock2D", "DownBlock2D"],
              up_block_types=["UpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"], block_out_channels=[8, 8, 12],
              downsample_type="resnet", resnet_time_scale_shift="scale_shift", num_class_embeds=4)  # fmt: skip
    diffusers("diffusers_sharded", 14, shards=3, out_channels=6, add_attention=False)
    cosine = dict(_class_name="DDPMScheduler", beta_schedule="squaredcos_cap_v2", num_train_timesteps=50,
                  prediction_type="epsilon")  # fmt: skip
    diffusers("diffusers_one_sided", 15, down_block_types=["DownBlock2D", "DownBlock2D"], attn_norm_num_groups=4,
              resnet_time_scale_shift="scale_shift", upsample_type="resnet", folder="unet", in_channels=1, out_channels=1,
              scheduler=cosine)  # fmt: skip

    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def old_names(key):
        for now, before in old.items():
            key = key.replace(f".{now}.", f".{before}.")
        return key

    diffusers("diffusers_old_names", 16, rename=old_names)

    config = dict(ADM, family="strided", image_height=28, image_width=28, image_channels=1, model_channels=6,
                  channel_mult=[1, 2, 4], num_res_blocks=2, attention_resolutions=[])  # fmt: skip
    model = randomize(dialects.Strided(config), 21)
    write_golden("strided", model, 28, 28, 1, 0, 21, times=(-1.3, 0.8))
    torch.save(model.state_dict(), HERE / "strided.pt")
    write_toml(HERE / "strided.toml", config)


if __name__ == "__main__":
    main()
    large = [p for p in HERE.rglob("*") if p.is_file() and p.stat().st_size > 1_000_000]
    assert not large, large
