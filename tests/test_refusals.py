"""Everything that can be refused without data is refused before data is loaded, for every method of a run."""

import pytest
import torch

from recbole_unlearn import UnlearnError, cli, data, pipeline, run_unlearn, unlearn_model
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model


@pytest.fixture
def no_data(monkeypatch):
    """Loading any data fails the test."""

    def load(*args, **kwargs):
        pytest.fail("data was loaded")

    monkeypatch.setattr(pipeline, "load", load)
    monkeypatch.setattr(data.splits, "create_dataset", load)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--unlearn=obliviate", "--rank=0"], "rank=0 is not valid: expected a whole number, at least 1, or"),
        (["--unlearn=obliviate", "--rank=half"], "rank='half' is not valid"),
        (["--unlearn=obliviate", "--lua_scale=big"], "lua_scale='big' is not valid: expected a number"),
        (["--unlearn=retrain", "--compare=obliviate", "--lac_steps=-1"], "lac_steps=-1 is not valid"),
        (["--unlearn=obliviate", "--lac_steps=9", "--lac_horizon=5"], "lac_horizon=5 is not valid: at least"),
        (["--unlearn=retrain", "--compare=retrain,finetune", "--finetune_epochs=0"], "finetune_epochs=0"),
        (["--unlearn=retrain", "--trials=0"], "trials=0 is not valid"),
        (["--unlearn=sisa", "--sisa_shards=none"], "sisa_shards='none' is not valid"),
        (["--model=EASE", "--unlearn=retrain", "--compare=rrl"], "EASE is a closed form of its data, and rrl"),
        (["--model=ItemKNN", "--unlearn=sisa"], "ItemKNN is a closed form of its data, and sisa"),
    ],
)  # fmt: skip
def test_settings_of_all_methods_are_checked_before_data_is_loaded(
    given, message, flags, no_data, capsys, tmp_path
):
    model = [] if given[0].startswith("--model") else ["--model=BPR"]
    assert cli.main([*model, "--dataset=tiny", *given, *flags()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_model_in_hand_is_refused_before_it_is_touched(make_config):
    config = make_config()
    splits = data.load(config).splits
    model = build_model(config, splits)
    with pytest.raises(UnlearnError, match="rank=0"):
        unlearn_model(config, model, splits, {"user_id": ["u1"]}, "obliviate", rank=0)


def test_replace_changes_what_a_method_reads_or_fails(make_config):
    config = make_config(unlearn="obliviate", compare="retrain")
    assert config.replace(lac_steps=3).method_values("obliviate")["lac_steps"] == 3
    assert config.method_values("obliviate")["lac_steps"] != 3
    assert config.replace(learning_rate=0.5)["learning_rate"] == 0.5
    with pytest.raises(UnlearnError, match="lac_stepz cannot be changed: unknown"):
        config.replace(lac_stepz=3)
    with pytest.raises(UnlearnError, match="rrl_steps cannot be changed: it is a setting of rrl"):
        config.replace(rrl_steps=3)


def test_a_run_gives_random_numbers_back(settings, make_config):
    """Whoever seeds their own script finds its random numbers as they left them."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run_unlearn("BPR", "tiny", unlearn="retrain", config_dict=settings | {"report": "none"})
    assert torch.equal(torch.rand(3), expected)
    config = make_config()
    splits = data.load(config).splits
    model = build_model(config, splits)
    torch.manual_seed(5)
    unlearn_model(config, model, splits, {"user_id": ["u1"]}, "obliviate")
    assert torch.equal(torch.rand(3), expected)


def test_places_go_into_no_result(settings):
    places = {"download_url": "https://example.org/secret.zip", "report": "none"}
    result = run_unlearn("BPR", "tiny", unlearn="retrain", config_dict=settings | places).result
    assert "secret" not in str(result)
    assert not {"ray_address", "download_url", "output_dir", "cache_dir", "data_path"} & set(
        result["settings"]
    )


def test_every_setting_of_ours_has_a_type(make_config):
    from recbole_unlearn.settings import own_settings

    for key, about in own_settings().items():
        assert about.types, key
        assert all(kind in (str, int, float, bool, list) for kind in about.types), key
        assert about.help, key
    assert isinstance(make_config(), UnlearnConfig)
