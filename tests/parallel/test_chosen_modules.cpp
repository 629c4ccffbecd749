// Members that are chosen at run time: AnyModule, std::unique_ptr, std::variant and std::optional in LOCKSTEP_MEMBERS.
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/ops/any_module.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/ops/summary.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::cpu_devices;
using lockstep::test::refusal_of;

namespace {

constexpr std::int64_t rows = 6;

struct Fixed {
    Conv2d conv{1, 3, 3};
    BatchNorm2d norm{3};
    ReLU act;
    Dropout drop{0.3};
    Linear head{48, 4};
    LOCKSTEP_MEMBERS(conv, norm, act, drop, head)
    Tensor forward(const Tensor& x) { return head(flatten(drop(act(norm(conv(x)))), 1)); }
};

struct Flat : PlainLayer {
    Tensor forward(const Tensor& x) const { return flatten(x, 1); }
};

/// Fixed as a list.
struct Listed {
    std::vector<AnyModule> layers;
    LOCKSTEP_MEMBERS(layers)
    explicit Listed(const Fixed& net) : layers{net.conv, net.norm, net.act, net.drop, Flat(), net.head} {}
    Tensor forward(const Tensor& given) {
        Tensor x = given;
        for (AnyModule& layer : layers) x = layer(x);
        return x;
    }
};

/// Fixed with members that own what they have. It cannot be copied.
struct Owning {
    std::unique_ptr<Conv2d> conv;
    std::variant<std::monostate, GroupNorm, BatchNorm2d> norm;
    std::variant<ReLU, Tanh> act;
    std::optional<Dropout> drop;
    std::unique_ptr<AnyModule> head;
    std::unique_ptr<Linear> absent;
    LOCKSTEP_MEMBERS(conv, norm, act, drop, head, absent)
    explicit Owning(const Fixed& net)
        : conv(std::make_unique<Conv2d>(net.conv)),
          norm(net.norm),
          drop(net.drop),
          head(std::make_unique<AnyModule>(net.head)) {}
    Tensor forward(const Tensor& x) {
        Tensor y = (*conv)(x);
        if (auto* group = std::get_if<GroupNorm>(&norm)) y = (*group)(y);
        if (auto* batch = std::get_if<BatchNorm2d>(&norm)) y = (*batch)(y);
        y = std::visit([&](auto& chosen) { return chosen(y); }, act);
        if (drop) y = (*drop)(y);
        return (*head)(flatten(y, 1));
    }
};

Tensor images() {
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * 36; ++i) values.push_back(static_cast<float>(i * i % 17) / 8 - 1);
    return Tensor::from(values, {rows, 1, 6, 6});
}

Tensor labels() { return Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3, 1, 0}, {rows}); }

auto values(auto& net) {
    std::vector<std::vector<double>> all;
    for (const NamedTensor& named : named_tensors(net))
        all.push_back(named.member->tensor().to(DType::f64).template to_vector<double>());
    return all;
}

std::vector<std::string> names(auto& net) {
    std::vector<std::string> all;
    for (const NamedTensor& named : named_tensors(net)) all.push_back(named.name);
    return all;
}

/// All tensors after three steps and an evaluation's outputs.
template <class Net>
auto trained(Net net, int devices) {
    manual_seed(5);
    DataParallel<Net> model(std::move(net), cpu_devices(devices), {.shards = 3});
    SGD sgd(model, {.lr = 0.2, .momentum = 0.9});
    for (int i = 0; i < 3; ++i) model.step(sgd, images(), labels(), cross_entropy);
    model.eval();
    const std::vector<float> outputs = model.forward(images()).template to_vector<float>();
    model.engine().verify_replicas();
    return std::pair(values(*model), outputs);
}

}  // namespace

TEST_CASE("chosen modules: names are those of the members that hold them") {
    manual_seed(1);
    const Fixed net;
    Listed listed(net);
    CHECK(names(listed) == std::vector<std::string>{"layers.0.weight", "layers.0.bias", "layers.1.weight",
                                                    "layers.1.bias", "layers.1.running_mean", "layers.1.running_var",
                                                    "layers.1.num_batches_tracked", "layers.5.weight",
                                                    "layers.5.bias"});
    Owning owning(net);
    CHECK(names(owning) == std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                                    "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
                                                    "head.weight", "head.bias"});
    owning.norm = std::monostate();
    CHECK(names(owning).size() == 4);
    owning.absent = std::make_unique<Linear>(1, 1);
    CHECK(names(owning).back() == "absent.bias");
}

TEST_CASE("chosen modules train to the bits of fixed members, on any number of devices") {
    manual_seed(2);
    const Fixed net;
    const auto expected = trained(Fixed(net), 1);
    for (const int devices : {1, 2, 3}) {
        INFO(devices << " devices");
        CHECK(trained(Listed(net), devices) == expected);
        CHECK(trained(Owning(net), devices) == expected);
    }
    Fixed start(net);
    CHECK(expected.first != values(start));
}

TEST_CASE("chosen modules: modes, devices, conversions and summaries reach the held modules") {
    manual_seed(3);
    Listed net{Fixed()};
    CHECK(training_modes(net) == "tt");  // BatchNorm2d and Dropout
    set_training(net, false);
    CHECK(training_modes(net) == "ee");
    convert_sync_batchnorm(net);
    CHECK(net.layers[1].get<BatchNorm2d>().options.statistics == BatchNormStatistics::synchronized);
    Listed rows_of_one{Fixed()};
    rows_of_one.layers = {BatchNorm1d(4), std::vector<AnyModule>{BatchNorm1d(4)}.front()};
    convert_sync_batchnorm(rows_of_one);
    CHECK(rows_of_one.layers[1].get<BatchNorm1d>().options.statistics == BatchNormStatistics::synchronized);
    to(net, Device::cpu(1));
    CHECK(net.layers[0].get<Conv2d>().weight->device() == Device::cpu(1));
    to(net, DType::f64);
    CHECK(net.layers[5].get<Linear>().weight->dtype() == DType::f64);
    Fixed fixed;
    Owning owning(fixed);
    CHECK(training_modes(owning) == "tt");
    CHECK(summary(owning, Shape{2, 1, 6, 6}).parameters == summary(fixed, Shape{2, 1, 6, 6}).parameters);
}

TEST_CASE("chosen modules: AnyModule is a value") {
    manual_seed(4);
    AnyModule first = Linear(2, 3);
    AnyModule copy = first;
    copy.get<Linear>().weight->detach().fill_(7);
    CHECK(first.get<Linear>().weight->to_vector<float>() != copy.get<Linear>().weight->to_vector<float>());
    CHECK(copy(Tensor::ones({1, 2})).to_vector<float>().size() == 3);
    first = copy;
    CHECK(first.get<Linear>().weight->to_vector<float>() == std::vector<float>(6, 7));
    CHECK(first.get<Linear>().weight.identity() != copy.get<Linear>().weight.identity());
    first = ReLU();
    CHECK(first(Tensor::full({1}, -2)).item() == 0);
    CHECK(first.type() == typeid(ReLU));
    const std::string message = refusal_of<InvalidArgument>([&] { first.get<Linear>(); });
    CHECK_THAT(message, contains("get<lockstep::Linear>() of a module of type lockstep::ReLU"));
    AnyModule moved = std::move(copy);
    CHECK(moved.get<Linear>().weight->numel() == 6);
    // NOLINTNEXTLINE(bugprone-use-after-move): the error is tested
    CHECK_THAT(refusal_of<InvalidArgument>([&] { copy(Tensor::ones({1, 2})); }), contains("was moved from"));
    copy = moved;
    CHECK(copy.get<Linear>().weight->numel() == 6);
    const AnyModule nested = AnyModule(std::move(moved));
    CHECK(nested.type() == typeid(Linear));
}

TEST_CASE("chosen modules: elements of a list keep their ties when others are erased or inserted") {
    Listed net{Fixed()};
    net.layers = {Linear(2, 2), Linear(2, 2), ReLU(), Linear(2, 2)};
    tie(net.layers[1].get<Linear>().weight, net.layers[3].get<Linear>().weight);
    const void* const shared = net.layers[1].get<Linear>().weight.identity();
    net.layers.erase(net.layers.begin());
    CHECK(net.layers[0].get<Linear>().weight.identity() == shared);
    CHECK(net.layers[2].get<Linear>().weight.identity() == shared);
    net.layers.insert(net.layers.begin(), Linear(2, 2));
    CHECK(net.layers[1].get<Linear>().weight.identity() == shared);
    CHECK(net.layers[3].get<Linear>().weight.identity() == shared);
}

TEST_CASE("chosen modules: a change that no tensor shows changes the next step") {
    manual_seed(6);
    const auto outputs_of = [](auto& model) { return model.forward(images()).template to_vector<float>(); };
    Fixed net;
    DataParallel listed(Listed(net), cpu_devices(2));
    DataParallel owning(Owning(net), cpu_devices(2));
    listed.eval();
    owning.eval();
    const auto before = outputs_of(listed);
    CHECK(outputs_of(owning) == before);
    listed->layers[2] = Tanh();
    owning->act = Tanh();
    const auto after = outputs_of(listed);
    CHECK(after != before);
    CHECK(outputs_of(owning) == after);
    listed->layers[2] = Dropout(0.5);
    listed->layers[2].get<Dropout>().training = false;
    owning->act = ReLU();
    CHECK(outputs_of(listed) != after);
    CHECK(outputs_of(owning) == before);
    // A list that grows by a layer without tensors.
    listed->layers[2] = ReLU();
    CHECK(outputs_of(listed) == before);
    listed->layers.insert(listed->layers.begin() + 4, Tanh());
    CHECK(outputs_of(listed) != before);
}

TEST_CASE("chosen modules: assigning writes values, and a change of structure is refused by name") {
    manual_seed(7);
    DataParallel model(Listed(Fixed()), cpu_devices(2));
    SGD sgd(model, {.lr = 0.1});
    const Listed best = *model;
    const Listed start = best;
    for (int i = 0; i < 2; ++i) model.step(sgd, images(), labels(), cross_entropy);
    model.synchronize();
    model->layers[0] = best.layers[0];
    model->layers[5] = Listed(start).layers[5];  // by move
    Listed expected = start;
    CHECK(model->layers[5].get<Linear>().weight->to_vector<float>() ==
          expected.layers[5].get<Linear>().weight->to_vector<float>());
    model.step(sgd, images(), labels(), cross_entropy);
    model.engine().verify_replicas();
    const auto step = [&] { model.step(sgd, images(), labels(), cross_entropy); };
    model->layers[0] = Conv2d(1, 3, 3, {.bias = false});
    CHECK_THAT(refusal_of<InvalidArgument>(step), contains("step: layers.0."));

    DataParallel owning(Owning(Fixed()), cpu_devices(2));
    SGD other(owning, {.lr = 0.1});
    owning.step(other, images(), labels(), cross_entropy);
    owning->absent = std::make_unique<Linear>(1, 1);
    CHECK_THAT(refusal_of<InvalidArgument>([&] { owning.step(other, images(), labels(), cross_entropy); }),
               contains("step: absent.weight was added"));
    owning->absent = nullptr;
    owning->norm = GroupNorm(1, 3);
    CHECK_THAT(refusal_of<InvalidArgument>([&] { owning.step(other, images(), labels(), cross_entropy); }),
               contains("step: norm."));
}

TEST_CASE("chosen modules are saved and loaded like fixed ones") {
    manual_seed(8);
    Listed saved{Fixed()}, loaded{Fixed()};
    CHECK(values(saved) != values(loaded));
    const lockstep::test::TemporaryDirectory folder;
    save(saved, folder / "net.safetensors");
    load(loaded, folder / "net.safetensors");
    CHECK(values(saved) == values(loaded));
    loaded.layers.pop_back();
    CHECK_THAT(refusal_of<DataError>([&] { load(loaded, folder / "net.safetensors"); }),
               contains("unexpected layers.5.weight, layers.5.bias"));
}
