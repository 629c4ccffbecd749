// The flags that all training programs share.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/engine.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/ranks.h"

namespace program {

/// Steps or epochs between saves, in addition to the save at the end of the run; both 0: no further saves.
struct SaveEvery {
    std::int64_t steps = 0, epochs = 0;
};

/// The learning rate over a run.
struct ScheduleFlags {
    std::string name = "constant";
    std::int64_t period = 30;                ///< epochs
    std::vector<std::int64_t> milestones{};  ///< in epochs
    double gamma = 0.1, lowest = 0, power = 1;
    std::int64_t patience = 10;  ///< evaluations
    std::string mode = "triangular";
    bool cycle_momentum = false;
    std::string str() const;  ///< name with the numbers that it uses
    /// Whether the rate changes with every step, up to that of --lr.
    bool is_by_steps() const { return name == "one-cycle" || name == "cyclic"; }
};

struct Options : RankFlags {
    std::string parallel = "dp";
    std::string devices = "all";
    std::optional<int> shards;
    std::optional<std::int64_t> batch_size, batch_size_per_device;  ///< if given
    std::int64_t default_batch_size = 64;                           ///< 0: a row on each device
    int accumulation_steps = 1;
    std::int64_t epochs = 10;
    std::optional<std::int64_t> steps;
    double default_lr = 0.01, default_momentum = 0.5;
    std::optional<double> lr, momentum;  ///< if given
    std::optional<double> weight_decay;  ///< if given
    double default_weight_decay = 0;
    double clip = 0;  ///< maximum norm of the gradients; 0: unlimited
    ScheduleFlags schedule;
    std::string rates = "none";  ///< or "adascale", "yellowfin"
    int early_stop = 0;          ///< evaluations without a better score before the run ends; 0: unlimited
    std::size_t keep = 0;        ///< checkpoints; 0: all
    std::filesystem::path best;  ///< the checkpoint with the best score; empty: none
    std::uint64_t seed = 1;
    bool deterministic = false;
    bool benchmark = false;   ///< choose algorithms by timed trials
    bool allow_tf32 = false;  ///< as EngineOptions::allow_tf32
    std::string amp = "off";  ///< fp16, bf16, or true: the preferred type of the devices
    int workers = 1;
    std::filesystem::path data;
    std::filesystem::path save, load, log_dir, json, trace;
    bool resumes_automatically = false;      ///< --resume auto: `load` is the checkpoint found, if any
    std::vector<std::string> allow_changed;  ///< names of facts that a resume may change
    std::vector<int> stop_signals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
    std::filesystem::path work_dir;  ///< default for `save` and `log_dir`, and directory of the configuration
    SaveEvery save_every;
    int trace_steps = 10;           ///< number of the last steps in `trace`
    std::int64_t log_interval = 0;  ///< batches between lines such as those of PyTorch's examples; 0: none
    bool quiet = false;
    std::string reduction = "tree";  ///< or "fast"

    /// Whether a result of the run depends on its evaluations.
    bool follows_score() const { return schedule.name == "plateau" || early_stop > 0 || !best.empty(); }

    std::string configuration;     ///< all flags with their values, as --config reads them
    std::filesystem::path config;  ///< file that the flags were read from, if any

    /// The processes of a run with `ddp`; null otherwise.
    std::shared_ptr<lockstep::ProcessGroup> group;

    bool distributed() const { return parallel == "ddp"; }
    /// Whether this process prints and writes files.
    bool is_rank0() const { return !group || group->rank() == 0; }
    int world() const { return group ? group->size() : 1; }
    /// The devices that this process trains on: with `none` the first chosen one, with `ddp` that of its rank.
    lockstep::Devices chosen_devices() const;
    lockstep::EngineOptions engine_options() const;
    /// The type for --amp; nullopt for f32.
    std::optional<lockstep::DType> autocast() const;
    std::int64_t global_batch_size(const lockstep::Devices& devices) const;
};

/// A program's additions to the common flags.
struct Program {
    std::string name;
    std::string purpose;
    std::string data = {};                          ///< description of --data; empty: no such flag
    std::function<void(CLI::App&)> add_flags = {};  ///< adds the program's own flags
    std::string command = {};                       ///< command after the program's name
    bool trains = true;                             ///< whether it has the flags of training
    /// Default of --save; with --work-dir only its file name. Empty: PROGRAM.safetensors in --work-dir, otherwise
    /// nothing is saved.
    std::filesystem::path checkpoint = {};
    bool saves_by_epochs = false;   ///< whether --save-every counts epochs if it has no unit
    std::string data_type = "DIR";  ///< kind of --data's value: DIR, FILE
};

/// As `run` in command_line.h, for a program with the common flags, whose `body` returns how it was stopped. With
/// `ddp`, and without a launcher, the program starts itself once for each device and waits for these processes.
int run(const Program& program, Options& options, int argc, char** argv,
        const std::function<std::optional<Stop>()>& body);

}  // namespace program
