// Trains one of the test networks and writes its checkpoint. test_same_bits runs one process per combination.
//     train_checkpoint NET DEVICES SHARDS root|slices|shm|gloo|mpi BUCKET_BYTES ROWS EPOCHS FILE [OPTIMIZER]
// Prints the operations that were enqueued on each device. With a backend it is one of DEVICES processes, and rank 0
// writes the checkpoint.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/consumer/lion.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

struct Arguments {
    std::string net;
    int devices, shards;
    std::string reduction;
    std::size_t bucket_bytes;
    std::int64_t rows;
    int epochs;
    std::string file;
    std::string optimizer = "sgd";
};

template <class Net>
void save(Net& net, const std::string& file) {
    struct Content {
        std::vector<float> floats;
        std::vector<std::int64_t> integers;
    };
    std::vector<Content> contents;
    std::vector<SafetensorsTensor> tensors;
    for (const NamedTensor& named : named_tensors(net)) {
        const Tensor& tensor = named.member->tensor();
        Content& content = contents.emplace_back();
        if (tensor.dtype() == DType::f32)
            content.floats = tensor.to_vector<float>();
        else
            content.integers = tensor.to_vector<std::int64_t>();
        const Shape& shape = tensor.shape();
        SafetensorsTensor entry{named.name, tensor.dtype(), {}, nullptr};
        for (int i = 0; i < shape.dims(); ++i) entry.shape.push_back(shape[i]);
        tensors.push_back(std::move(entry));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i)
        tensors[i].data = tensors[i].dtype == DType::f32 ? static_cast<const void*>(contents[i].floats.data())
                                                         : contents[i].integers.data();
    write_safetensors(file, tensors);
}

template <class Model>
std::unique_ptr<Optimizer> make_optimizer(Model& model, const std::string& name) {
    if (name == "sgd") return std::make_unique<SGD>(model, SgdOptions{.lr = 0.01, .momentum = 0.5});
    if (name == "adam") return std::make_unique<Adam>(model, AdamOptions{.weight_decay = 0.01, .amsgrad = true});
    if (name == "adamw") return std::make_unique<AdamW>(model);
    if (name == "rmsprop")
        return std::make_unique<RMSprop>(model, RmspropOptions{.lr = 1e-3, .momentum = 0.5, .centered = true});
    if (name == "adagrad") return std::make_unique<Adagrad>(model, AdagradOptions{.lr_decay = 0.1});
    if (name == "adadelta") return std::make_unique<Adadelta>(model);
    if (name == "adamax") return std::make_unique<Adamax>(model);
    if (name == "radam") return std::make_unique<RAdam>(model, RAdamOptions{.weight_decay = 0.01});
    if (name == "nadam") return std::make_unique<NAdam>(model, NAdamOptions{.weight_decay = 0.01});
    if (name == "rprop") return std::make_unique<Rprop>(model, RpropOptions{.lr = 1e-4});
    if (name == "asgd") return std::make_unique<ASGD>(model, AsgdOptions{.t0 = 2});
    if (name == "lars")
        return std::make_unique<LARS>(model, LarsOptions{.lr = 1, .momentum = 0.9, .weight_decay = 0.01});
    if (name == "lamb") return std::make_unique<LAMB>(model);
    if (name == "lion") return std::make_unique<Lion>(model, LionOptions{.weight_decay = 0.1});
    throw InvalidArgument("there is no optimizer " + name);
}

template <class Model>
void train(Model& model, const Arguments& arguments) {
    const test::Images images(arguments.rows);
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(model, arguments.optimizer);
    for (int epoch = 0; epoch < arguments.epochs; ++epoch)
        for (std::int64_t first = 0; first < arguments.rows; first += 64) {
            const std::int64_t last = std::min(first + 64, arguments.rows);
            model.step(*optimizer, images.batch(first, last), images.targets(first, last), nll_loss);
        }
    model.engine().verify_replicas();
    for (const std::uint64_t count : model.engine().operations_per_device())
        std::printf("%llu\n", static_cast<unsigned long long>(count));
}

template <class Net>
void train(const Arguments& arguments) {
    EngineOptions options;
    options.shards = arguments.shards;
    options.bucket_bytes = arguments.bucket_bytes;
    options.seed = 5;
    manual_seed(1);
    if (arguments.reduction != "root" && arguments.reduction != "slices") {
        ProcessGroup group({.backend = arguments.reduction});
        DistributedDataParallel<Net> model(Net{}, group, options);
        train(model, arguments);
        if (group.rank() == 0) save(model.module(), arguments.file);
        group.barrier();
        return;
    }
    std::vector<Device> devices;
    for (int i = 0; i < arguments.devices; ++i) devices.push_back(Device::cpu(i));
    options.reduction = arguments.reduction == "slices" ? ReductionMode::slice_wise : ReductionMode::root;
    DataParallel<Net> model(Net{}, Devices(devices), options);
    train(model, arguments);
    save(model.module(), arguments.file);
}

}  // namespace

int main(int count, char** words) {
    if (count != 9 && count != 10) {
        std::fprintf(stderr,
                     "usage: train_checkpoint NET DEVICES SHARDS root|slices|BACKEND BUCKET_BYTES ROWS EPOCHS FILE "
                     "[OPTIMIZER]\n");
        return 2;
    }
    try {
        const Arguments arguments{words[1],
                                  std::atoi(words[2]),
                                  std::atoi(words[3]),
                                  words[4],
                                  std::strtoul(words[5], nullptr, 10),
                                  std::atol(words[6]),
                                  std::atoi(words[7]),
                                  words[8],
                                  count == 10 ? words[9] : "sgd"};
        if (arguments.net == "small")
            train<test::Small>(arguments);
        else if (arguments.net == "normed")
            train<test::Normed>(arguments);
        else if (arguments.net == "synced")
            train<test::Synced>(arguments);
        else
            train<test::Cnn>(arguments);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_checkpoint: %s\n", error.what());
        return 1;
    }
}
