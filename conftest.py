"""What holds for all tests and doctests; those of what needs other packages are collected where it is installed."""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator

import pytest

# They have no doctests; mutants.py needs coverage.
collect_ignore_glob = ["tests/sites/kills.py", "tests/sites/federation.py", "tests/mutants.py"]
collect_ignore_glob.append("docs/methods/*")  # tests/test_method_pages.py runs them
if not importlib.util.find_spec("starlette"):
    collect_ignore_glob += ["src/fedax/sites/service/*", "src/fedax/sites/protocol/masks.py"]
if not importlib.util.find_spec("torch"):
    collect_ignore_glob.append("tests/tasks/torch_models.py")
if not importlib.util.find_spec("griffe"):
    collect_ignore_glob.append("docs/website/*")

# What stands in these places has a marker (pyproject.toml), and what stands for it in the default suite.
MARKED = {
    "deploy": (
        "tests/sites/", "tests/engine/test_attacks.py", "tests/engine/test_desks.py",
        "tests/engine/test_fingerprint.py", "tests/engine/test_masks.py", "tests/engine/test_paced.py",
        "tests/engine/test_personal_nodes.py", "tests/engine/test_policy.py", "tests/engine/test_remote.py",
        "tests/engine/test_secure.py", "tests/engine/test_signals.py",
        "tests/wire/test_compressed.py::test_real_clients",
    ),
    "docs": (
        "README.md", "docs/", "src/", "tests/experiments/test_notebook.py", "tests/test_method_pages.py",
        "tests/test_pages.py", "tests/test_site.py", "tests/test_study_pages.py",
    ),
    "study": (
        "tests/algorithms/test_solvers.py::test_learning_rates_of_optax_sweep_in_one_program",
        "tests/data/test_heart.py::test_the_recipe_is_as_good_as_the_benchmark_s_loop_from_the_same_start",
        "tests/engine/test_held_out.py",
        "tests/engine/test_sweep.py::test_a_checkpoint_tells_cohorts_drawn_by_weights",
        "tests/engine/test_sweep.py::test_a_sweep_goes_on_as_if_it_had_never_stopped",
        "tests/engine/test_sweep.py::test_blocks_of_any_width_give_the_same",
        "tests/engine/test_sweep.py::test_each_point_has_the_timetable_of_its_pace_clock_and_work",
        "tests/engine/test_sweep.py::test_initial_models_that_differ_by_seed",
        "tests/engine/test_sweep.py::test_one_point_with_seeds_on_cores_goes_on",
        "tests/engine/test_sweep.py::test_seeds_of_one_point_are_spread_over_the_cores",
        "tests/engine/test_sweep.py::test_seeds_with_data_of_their_own",
        "tests/engine/test_sweep.py::test_the_start_of_feddas_metric",
        "tests/engine/test_sweep.py::test_what_differs_in_shape_is_another_program",
        "tests/engine/test_sweep.py::test_what_is_over_is_neither_compiled_nor_run_again",
        "tests/engine/test_unseen.py",
        "tests/experiments/", "tests/test_choosing.py", "tests/test_progress.py",
        "tests/wire/test_privacy.py::test_noises_and_clips_are_lanes_of_one_program",
    ),
    "theory": (
        "tests/theory/", "tests/privacy/", "tests/references/",
        "tests/algorithms/test_against_references.py::test_bfloat16_parameters", "tests/algorithms/test_any_solver.py",
        "tests/algorithms/test_bed.py", "tests/algorithms/test_cohorts.py", "tests/algorithms/test_composite.py",
        "tests/algorithms/test_compressed.py", "tests/algorithms/test_fixed_points.py",
        "tests/algorithms/test_identities.py", "tests/algorithms/test_personal_part.py",
        "tests/algorithms/test_traits.py::test_methods_end_where_they_say",
        "tests/wire/test_privacy.py::test_the_tail_of_the_noise_goes_on",
        "tests/contract/test_papers.py", "tests/test_conformance.py",
    ),
    "tasks": (
        "tests/tasks/", "tests/engine/test_personal.py::test_layers_keep_personal_models",
        "tests/engine/test_saved.py", "tests/engine/test_trainable.py",
    ),
    "time": (
        "tests/engine/test_arrivals.py", "tests/engine/test_asynchronous.py",
        "tests/engine/test_asynchronous_methods.py", "tests/engine/test_time.py",
    ),
    "hostile": (
        "tests/test_hostile.py", "tests/sites/test_attacks.py", "tests/wire/test_bad_clients.py",
        "tests/wire/test_privacy.py::test_one_clients_losses_do_not_tell_how_a_run_ends",
        "tests/wire/test_privacy.py::test_what_is_measured_on_clients_decides_nothing",
        "tests/wire/test_privacy.py::test_who_comes_is_a_secret_too",
    ),
    "cluster": (
        "tests/algorithms/test_x64.py",
        "tests/engine/test_asynchronous.py::test_a_run_goes_on_bit_for_bit_on_as_many_devices",
        "tests/engine/test_machines.py", "tests/engine/test_memory.py", "tests/engine/test_mesh.py",
        "tests/engine/test_peak.py", "tests/engine/test_personal.py::test_places_agree",
        "tests/engine/test_places.py::test_every_method_off_the_device",
        "tests/engine/test_precision.py", "tests/engine/test_processes.py",
        "tests/engine/test_programs.py::test_many_tasks_leave_no_programs_behind", "tests/experiments/test_cluster.py",
        "tests/metrics/test_metrics.py::test_sums_of_twenty_million_examples",
        "tests/test_start.py::test_every_core_is_a_device_unless_somebody_chose",
        "tests/test_start.py::test_the_second_process_of_a_run_compiles_nothing",
        "tests/test_start.py::test_two_processes_share_what_they_compile_at_once",
        "tests/test_start.py::test_what_other_systems_do_not_have_is_not_needed",
        "tests/wire/test_secure.py::test_the_same_bits_in_every_place",
    ),
}  # fmt: skip
SMOKE = (
    "tests/algorithms/test_against_references.py::test_bfloat16_parameters[scaffold-m-vr]",
    "tests/algorithms/test_any_solver.py::test_every_method_takes_a_solver_or_says_why_not",
    "tests/algorithms/test_any_solver.py::test_scaffold_with_adam",
    "tests/algorithms/test_compressed.py::test_without_compression_it_is_gradient_descent",
    "tests/algorithms/test_fixed_points.py::test_fednova_ends_at_its_closed_form",
    "tests/algorithms/test_personal_part.py::test_any_method_takes_the_rest[fedavg-m]",
    "tests/algorithms/test_traits.py::test_methods_end_where_they_say[scaffold]",
    "tests/algorithms/test_x64.py::test_compressors_have_no_float32",
    "tests/contract/test_papers.py::test_a_planted_error_is_found_and_its_kind_said[FedSAM y - self.rho]",
    "tests/engine/test_asynchronous.py::test_a_run_goes_on_bit_for_bit[",
    "tests/engine/test_asynchronous.py::test_a_schedule_that_ends_too_soon_is_refused_before_the_work",
    "tests/engine/test_asynchronous.py::test_equal_speeds_and_a_buffer_for_all_are_the_synchronous_method[fedavg]",
    "tests/engine/test_asynchronous.py::test_equal_speeds_and_a_buffer_for_all_are_the_synchronous_method[scaffold]",
    "tests/engine/test_asynchronous.py::test_what_cannot_be_is_refused",
    "tests/engine/test_asynchronous.py::test_without_a_weight_of_staleness_fedbuff_is_fedavg",
    "tests/engine/test_asynchronous_methods.py::test_fedbuff",
    "tests/engine/test_mesh.py::test_a_run_compiles_its_rounds_once_on_a_mesh",
    "tests/engine/test_personal.py::test_places_agree[host-mr-mtl]",
    "tests/engine/test_places.py::test_every_method_off_the_device[scaffold-host]",
    "tests/engine/test_precision.py::test_the_compiler_is_told",
    "tests/engine/test_remote.py::test_every_method_at_nodes[scaffold-m-vr]",
    "tests/engine/test_sweep.py::test_a_sweep_goes_on_as_if_it_had_never_stopped[2-1-short]",
    "tests/engine/test_time.py::test_a_clock_changes_nothing_else",
    "tests/engine/test_time.py::test_a_round_lasts_as_long_as_its_slowest_client",
    "tests/engine/test_time.py::test_a_run_that_goes_on_has_the_same_times",
    "tests/engine/test_time.py::test_of_one_client_time_is_the_sum_of_the_costs[fedavg]",
    "tests/engine/test_time.py::test_of_one_client_time_is_the_sum_of_the_costs[mime]",
    "tests/engine/test_time.py::test_of_one_client_time_is_the_sum_of_the_costs[scaffold-m-vr]",
    "tests/engine/test_unseen.py::test_a_client_that_takes_no_part_never_influences_training[place0-ditto]",
    "tests/engine/test_unseen.py::test_figures_of_unseen_clients_are_those_of_the_model_on_their_test_rows",
    "tests/experiments/test_runs.py",
    "tests/privacy/test_factorization.py",
    "tests/sites/test_attacks.py::test_a_node_does_not_answer_for_another",
    "tests/tasks/test_losses.py",
    "tests/test_conformance.py::test_two_of_fedax_s_own_methods_hold_what_is_cheap_to_check[mime]",
    "tests/test_hostile.py::test_changed_files_are_read_or_refused[checkpoint]",
    "tests/test_hostile.py::test_changed_files_are_read_or_refused[csv]",
    "tests/test_hostile.py::test_changed_files_are_read_or_refused[message]",
    "tests/test_hostile.py::test_changed_files_are_read_or_refused[npz]",
    "tests/test_method_pages.py::test_every_method_has_a_page_and_every_page_a_method",
    "tests/test_method_pages.py::test_the_example_can_run",
    "tests/theory/test_predictions.py",
    "tests/wire/test_bad_clients.py::test_what_is_left_out_is_as_if_it_had_not_been_drawn",
    "tests/wire/test_compressed.py::test_real_clients[scaffold-how0-more0]",
    "tests/wire/test_privacy.py::test_who_comes_is_a_secret_too",
    "tests/wire/test_secure.py::test_the_same_bits_in_every_place[participation0-short]",
)


def pytest_configure(config: pytest.Config) -> None:
    """Who names files, and no markers, gets what the whole suite has of them."""
    marked = any(each.startswith("-m") for each in config.invocation_params.args)
    if config.args_source is pytest.Config.ArgsSource.ARGS and not marked:
        config.option.markexpr = "not long"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by where they stand."""
    for item in items:
        for name, places in MARKED.items():
            if item.nodeid.startswith(places):
                item.add_marker(name)
        if item.nodeid.startswith(SMOKE):
            item.add_marker("smoke")


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers by name, the next one does not find."""
    modules = {"METHODS": sys.modules.get("fedax.algorithms"), "TASKS": sys.modules.get("fedax.tasks")}
    known = [getattr(module, name) for name, module in modules.items() if module is not None]
    before = [{key: dict(value) for key, value in vars(each).items() if isinstance(value, dict)} for each in known]
    yield
    for registry, tables in zip(known, before, strict=True):
        vars(registry).update(tables)


@pytest.fixture(scope="session", autouse=True)
def plots() -> Iterator[Callable[..., contextlib.AbstractContextManager[None]]]:
    """Plots take longer than most runs of tests: run folders have none, where a test does not ask for them.

    ``with plots():`` they are drawn as PNG, ``with plots("png", "svg", "pdf"):`` as for users.
    """
    from fedax.experiments import plots as module

    write_plots = module.write_plots

    @contextlib.contextmanager
    def drawn(*formats: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "FORMATS", formats or ("png",))
            patch.setattr(module, "write_plots", write_plots)
            yield

    with drawn(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_plots", lambda record, only="": None)
        yield drawn


@pytest.fixture
def with_plots(plots: Callable[..., contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """The run folders of a test have plots, as PNG."""
    with plots():
        yield


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """Typer makes the parser of the command anew for each call, and it is the same."""
    import typer

    made = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", made)
        patch.setattr("typer.testing._get_command", made)
        yield
