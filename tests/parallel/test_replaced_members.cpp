// Writing to the members of a model that a wrapper or an optimizer holds: values are written; the next call refuses a
// change of structure and names the member.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct EightDevices {
    EightDevices() { setenv("LOCKSTEP_CPU_DEVICES", "8", 1); }
};
const EightDevices eight_devices;

struct Net {
    std::vector<Linear> layers{Linear(2, 2), Linear(2, 2)};
    BatchNorm2d norm{2};
    Linear fc{2, 2}, last{2, 1};
    LOCKSTEP_MEMBERS(layers, norm, fc, last)
    Tensor forward(const Tensor& x) const {
        Tensor hidden = x;
        for (const Linear& layer : layers) hidden = layer(hidden);
        hidden = norm(hidden.reshape({hidden.shape()[0], 2, 1, 1})).flatten(1);
        return last(fc(hidden));
    }
};

Tensor x() {
    manual_seed(9);
    return Tensor::randn({6, 2});
}
Tensor y() { return Tensor::full({6, 1}, 1); }
Tensor squares_of(const Tensor& output) {
    const Tensor difference = output - y().to(output.device());
    return sum(difference * difference) * (1.0 / 6);
}
Loss loss_of(const Tensor& output, const Tensor& target) { return mse_loss(output, target); }

Devices cpus(int count) {
    std::vector<Device> all;
    for (int i = 0; i < count; ++i) all.push_back(Device::cpu(i));
    return Devices(all);
}

std::vector<std::vector<float>> values(auto& model) {
    std::vector<std::vector<float>> all;
    for (const NamedTensor& named : named_tensors(model))
        if (named.member->tensor().dtype() == DType::f32)
            all.push_back(named.member->tensor().template to_vector<float>());
    return all;
}

void train(auto& model, SGD& sgd, int steps = 2) {
    for (int i = 0; i < steps; ++i) model.step(sgd, x(), y(), loss_of);
    model.synchronize();
}

struct Tied {
    Linear a{2, 2, false}, b{2, 2, false};
    Tied() { tie(a.weight, b.weight); }
    LOCKSTEP_MEMBERS(a, b)
    Tensor forward(const Tensor& input) const { return sum(b(a(input)), 1, true); }
};

/// After `change` every call is refused, with the message that the member was `what`.
void check_refusal(const std::string& name, const std::string& what, const std::function<void(Net&)>& change) {
    INFO(name << " " << what);
    manual_seed(3);
    DataParallel model(Net{}, cpus(2));
    SGD sgd(model, {.lr = 0.1});
    train(model, sgd, 1);
    squares_of(model.forward(x())).backward();
    change(*model);
    const TemporaryDirectory folder;
    const std::filesystem::path path = folder / "net";
    const auto says = [&](const std::string& function, const std::function<void()>& call) {
        CHECK(message_of<InvalidArgument>(call) == function + ": " + name + " was " + what +
                                                       " after the model was wrapped; expected values of the same "
                                                       "shape, or a new wrapper of the changed model");
    };
    says("step", [&] { model.step(sgd, x(), y(), loss_of); });
    says("forward", [&] { model.forward(x()); });
    says("optimizer step", [&] { sgd.step(); });
    says("zero_grad", [&] { sgd.zero_grad(); });
    says("save", [&] { save(model, path); });
    says("save_checkpoint", [&] { save_checkpoint(model, sgd, {}, path); });
    says("clip_grad", [&] { clip_grad_norm_(model, {.max_norm = 1}); });
    says("clip_grad_norm_", [&] { clip_grad_norm_(sgd, {.max_norm = 1}); });
    CHECK(!std::filesystem::exists(path));
}

/// Members that may be absent or of another type.
struct Owner {
    std::optional<Linear> maybe{Linear(2, 2)}, later;
    std::unique_ptr<Linear> own = std::make_unique<Linear>(2, 2), absent;
    std::vector<AnyModule> any{Linear(2, 2), ReLU()};
    std::variant<Linear, LayerNorm> either{Linear(2, 2)};
    Linear last{2, 1};
    LOCKSTEP_MEMBERS(maybe, later, own, absent, any, either, last)
    Tensor forward(const Tensor& x) {
        Tensor hidden = maybe ? (*maybe)(x) : x;
        if (later) hidden = (*later)(hidden);
        if (own) hidden = (*own)(hidden);
        if (absent) hidden = (*absent)(hidden);
        for (AnyModule& layer : any) hidden = layer(hidden);
        return last(std::visit([&](auto& layer) { return layer(hidden); }, either));
    }
};

struct OwnerChange {
    std::string name, what;  ///< the first changed member, and its change; "": only values or names change
    bool loses;              ///< a parameter ends
    std::function<void(Owner&)> change;
};

std::vector<OwnerChange> owner_changes() {
    return {
        {"maybe.weight", "removed", true, [](Owner& net) { net.maybe.reset(); }},
        {"maybe.weight", "", true, [](Owner& net) { net.maybe.emplace(2, 2); }},
        {"maybe.weight", "replaced", true, [](Owner& net) { net.maybe = Linear(3, 2); }},
        {"maybe.weight", "moved from", true, [](Owner& net) { const Linear taken = std::move(*net.maybe); }},
        {"maybe.weight", "replaced", false, [](Owner& net) { std::swap(*net.maybe, *net.own); }},
        {"later.weight", "added", false, [](Owner& net) { net.later = Linear(2, 2); }},
        {"own.weight", "removed", true, [](Owner& net) { net.own.reset(); }},
        {"own.weight", "replaced", true, [](Owner& net) { *net.own = Linear(2, 3); }},
        {"own.weight", "", false, [](Owner& net) { net.absent = std::move(net.own); }},
        {"absent.weight", "added", false, [](Owner& net) { net.absent = std::make_unique<Linear>(2, 2); }},
        {"any.0.weight", "removed", true, [](Owner& net) { net.any[0] = Tanh(); }},
        {"any.0.weight", "replaced", true, [](Owner& net) { net.any[0] = Linear(2, 3); }},
        {"any.0.weight", "", false, [](Owner& net) { std::swap(net.any[0], net.any[1]); }},
        {"any.1.weight", "added", false, [](Owner& net) { net.any[1] = Linear(2, 2); }},
        {"any.2.weight", "added", false, [](Owner& net) { net.any.emplace_back(Linear(2, 2)); }},
        {"either.weight", "replaced", true, [](Owner& net) { net.either = LayerNorm(2); }},
    };
}

}  // namespace

TEST_CASE("restoring a copy of a wrapped model writes values, and training continues from there on all replicas") {
    for (const int count : {1, 2, 3}) {
        INFO(count << " devices");
        manual_seed(1);
        DataParallel model(Net{}, cpus(count), {.shards = 2});
        SGD sgd(model, {.lr = 0.1});
        train(model, sgd);
        Net best = *model;
        const auto best_values = values(best);
        train(model, sgd);
        const auto expected = values(*model);
        CHECK(expected != best_values);

        *model = best;
        CHECK(values(*model) == best_values);
        train(model, sgd);  // SGD without momentum: the same steps again
        CHECK(values(*model) == expected);
        CHECK(values(best) == best_values);
        model.engine().verify_replicas();

        const Net best_again = best;
        *model = std::move(best);  // by move
        train(model, sgd);
        CHECK(values(*model) == expected);
        model.engine().verify_replicas();

        Net another = best_again;
        model->layers = std::move(another.layers);  // other elements, of the same shapes
        model->layers.pop_back();
        model->layers.emplace_back(2, 2);
        *model = best_again;
        train(model, sgd);
        CHECK(values(*model) == expected);
        model.engine().verify_replicas();

        Net& same = *model;
        *model = same;  // self-assignment
        CHECK(values(*model) == expected);
        train(model, sgd);
        CHECK(values(*model) != expected);
    }
}

TEST_CASE("layers and parameters are assigned by value, and flags and identity stay") {
    manual_seed(2);
    DataParallel model(Net{}, cpus(2));
    SGD sgd(model, {.lr = 0.1});
    train(model, sgd);
    const void* const identity = model->fc.weight.identity();
    Net other;
    other.fc.weight->requires_grad_(false);
    const auto wanted = other.fc.weight->to_vector<float>();
    model->fc = other.fc;
    CHECK(model->fc.weight.identity() == identity);
    CHECK(model->fc.weight->to_vector<float>() == wanted);
    CHECK(model->fc.weight->requires_grad());
    model->fc = Linear(2, 2);  // from a temporary
    model->layers[0].weight = model->layers[1].weight;
    model->layers = other.layers;  // the same number, of the same shapes
    model->norm = BatchNorm2d(2);
    CHECK(model->fc.weight.identity() == identity);
    CHECK(model->layers[1].weight->to_vector<float>() == other.layers[1].weight->to_vector<float>());
    const auto before = values(*model);
    train(model, sgd);
    CHECK(values(*model) != before);
    model.engine().verify_replicas();
    const TemporaryDirectory folder;
    save(model, folder / "net");
    Net loaded;
    load(loaded, folder / "net");
    CHECK(values(loaded) == values(*model));
}

TEST_CASE("after a change of structure, every call throws an error that names the member") {
    check_refusal("fc.weight", "replaced", [](Net& net) { net.fc = Linear(2, 3); });
    check_refusal("fc.weight", "replaced", [](Net& net) { net.fc.weight = Parameter(Tensor::zeros({4, 4})); });
    check_refusal("layers.0.weight", "replaced", [](Net& net) { std::swap(net.layers[0], net.fc); });
    check_refusal("layers.2.weight", "added", [](Net& net) { net.layers.emplace_back(2, 2); });
    check_refusal("layers.1.weight", "removed", [](Net& net) { net.layers.pop_back(); });
    check_refusal("layers.1.weight", "removed", [](Net& net) { net.layers.erase(net.layers.begin()); });
    check_refusal("layers.0.weight", "removed", [](Net& net) { net.layers.clear(); });
    check_refusal("last.weight", "moved from", [](Net& net) { const Linear taken = std::move(net.last); });
    check_refusal("norm.running_mean", "replaced",
                  [](Net& net) { *net.norm.running_mean = ModuleBuffer(Tensor::zeros({5})); });
    check_refusal("norm.running_mean", "removed", [](Net& net) { net.norm.running_mean.reset(); });
    check_refusal("last.weight", "replaced", [](Net& net) {
        net.layers.clear();  // other layers of the same shapes are accepted
        net.layers.emplace_back(2, 2);
        net.layers.emplace_back(2, 2);
        net.last = Linear(2, 3);
    });
    Net other;
    check_refusal("layers.0.weight", "replaced", [&](Net& net) { std::swap(net, other); });
}

TEST_CASE("plain modules of an optimizer: values are written, and calls fail if a member was removed") {
    manual_seed(4);
    Net net;
    SGD sgd(net, {.lr = 0.1});
    const auto step = [&] {
        squares_of(net.forward(x())).backward();
        sgd.step();
        sgd.zero_grad();
    };
    step();
    const Net best = net;
    step();
    const auto expected = values(net);
    net = best;
    step();
    CHECK(values(net) == expected);
    Net moved = std::move(net);  // the optimizer refers to the moved model
    squares_of(moved.forward(x())).backward();
    sgd.step();
    CHECK(values(moved) != expected);
    moved.fc = Linear(2, 7);
    const std::string sentence =
        ": fc.weight is no longer part of the model (replaced or removed after the optimizer was created); expected a "
        "new optimizer of the changed model";
    CHECK(message_of<InvalidArgument>([&] { sgd.step(); }) == "optimizer step" + sentence);
    CHECK(message_of<InvalidArgument>([&] { sgd.zero_grad(); }) == "zero_grad" + sentence);
    const TemporaryDirectory folder;
    CHECK(message_of<InvalidArgument>([&] { save(moved, folder / "net"); }) == "save" + sentence);
    CHECK(message_of<InvalidArgument>([&] { clip_grad_norm_(moved, {.max_norm = 1}); }) == "clip_grad" + sentence);
}

TEST_CASE("without a wrapper or optimizer, models are values of any structure") {
    Net net;
    net.fc = Linear(2, 5);
    CHECK(net.fc.weight->shape() == Shape({5, 2}));
    net.layers.push_back(Linear(2, 2));  // moves the other layers
    net.layers.erase(net.layers.begin());
    std::swap(net.fc, net.last);
    const auto make = [] { return Net{}; };
    std::optional<Net> perhaps;
    perhaps = make();
    Net grown = std::move(*perhaps);
    grown.layers.insert(grown.layers.begin(), Linear(2, 2));
    DataParallel model(std::move(grown), cpus(2));
    SGD sgd(model, {.lr = 0.1});
    const auto before = values(*model);
    train(model, sgd, 1);
    CHECK(values(*model) != before);
    {
        Net trained;
        const SGD gone(trained);
        trained.fc = Linear(2, 2);
    }
    Net trained;
    { const SGD gone(trained); }
    trained.fc = Linear(2, 5);  // no optimizer holds it any more
    CHECK(trained.fc.weight->shape() == Shape({5, 2}));
}

TEST_CASE("ties survive assignment") {
    DataParallel model(Tied{}, cpus(2));
    SGD sgd(model, {.lr = 0.1});
    Tied other;
    *model = other;
    CHECK(model->a.weight.identity() == model->b.weight.identity());
    CHECK(model->b.weight->to_vector<float>() == other.a.weight->to_vector<float>());
    CHECK(other.a.weight.identity() == other.b.weight.identity());
    model.step(sgd, x(), y(), loss_of);
    Tied copy = *model;
    CHECK(copy.a.weight.identity() == copy.b.weight.identity());
    CHECK(copy.a.weight.identity() != model->a.weight.identity());
    Linear loose(2, 2, false);
    CHECK_THROWS_AS(tie(loose.weight, model->a.weight), InvalidArgument);
    CHECK_THROWS_AS(model->a.weight.rebind(Tensor::zeros({2, 2})), InvalidArgument);
    model.step(sgd, x(), y(), loss_of);
    model.synchronize();
}

TEST_CASE(
    "members in std::optional, std::unique_ptr, std::variant and AnyModule of a wrapper that change are refused") {
    for (const OwnerChange& one : owner_changes()) {
        INFO(one.name << " " << one.what);
        DataParallel model(Owner{}, cpus(2));
        SGD sgd(model, {.lr = 0.1});
        model.step(sgd, x(), y(), loss_of);
        one.change(*model);
        if (one.what.empty()) {
            const auto before = values(*model);
            train(model, sgd, 1);
            CHECK(values(*model) != before);
            model.engine().verify_replicas();
            continue;
        }
        for (const auto& call : std::vector<std::function<void()>>{[&] { model.step(sgd, x(), y(), loss_of); },
                                                                   [&] { model.forward(x()); }, [&] { sgd.step(); }})
            CHECK(contains(message_of<InvalidArgument>(call),
                           ": " + one.name + " was " + one.what + " after the model was wrapped"));
    }
}

TEST_CASE("members of a plain module that end are refused by its optimizer, which names them") {
    for (const OwnerChange& one : owner_changes()) {
        INFO(one.name << " " << one.what);
        Owner net;
        SGD sgd(net, {.lr = 0.1});
        one.change(net);
        if (one.loses) {
            const std::string gone = one.name + " is no longer part of the model";
            CHECK(contains(message_of<InvalidArgument>([&] { sgd.step(); }), gone));
            CHECK(contains(message_of<InvalidArgument>([&] { sgd.zero_grad(); }), gone));
            continue;
        }
        // Its parameters only have other places, or there is one that the optimizer never had.
        const auto before = values(net);
        CHECK_NOTHROW(sgd.zero_grad());
        CHECK(values(net) == before);
    }
}
