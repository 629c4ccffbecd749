// Messages name the function that the program called, even if it calls other functions.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/special_layers.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

using Call = std::function<void()>;

Tensor on(int device, const Shape& shape) { return Tensor::full(shape, 1, DType::f32, Device::cpu(device)); }
Tensor targets(int device, std::int64_t rows) { return Tensor::zeros({rows}, DType::i64, Device::cpu(device)); }

void check(const std::vector<std::pair<const char*, Call>>& calls, const std::string& text) {
    for (const auto& [name, call] : calls) {
        INFO(name);
        CHECK(message_of<InvalidArgument>(call) == name + text);
    }
}

}  // namespace

TEST_CASE("tensors on different devices") {
    const Tensor a = on(0, {2, 3}), b = on(1, {2, 3}), image = on(0, {1, 2, 4, 4});
    check(
        {
            {"add", [&] { (void)(a + b); }},
            {"sub", [&] { (void)(a - b); }},
            {"mul", [&] { (void)(a * b); }},
            {"div", [&] { (void)(a / b); }},
            {"matmul",
             [&] {
                 (void)matmul(a, on(1, {3, 2}));
             }},
            {"matmul",
             [&] {
                 (void)matmul(a.unsqueeze(0), on(1, {3, 2}));
             }},
            {"linear", [&] { (void)linear(a, b); }},
            {"linear",
             [&] {
                 (void)linear(on(0, {2, 2, 3}), b);
             }},
            {"conv2d",
             [&] {
                 (void)conv2d(image, on(1, {1, 2, 3, 3}));
             }},
            {"conv_transpose2d",
             [&] {
                 (void)conv_transpose2d(image, on(0, {2, 1, 3, 3}), on(1, {1}));
             }},
            {"batch_norm", [&] { (void)batch_norm(image, on(0, {2}), on(0, {2}), on(1, {2})); }},
            {"layer_norm", [&] { (void)layer_norm(a, {3}, on(1, {3})); }},
            {"batch_norm", [&] { (void)batch_norm(image, on(0, {2}), on(1, {2})); }},
            {"cat",
             [&] {
                 (void)cat({a, b});
             }},
            {"sum_over_shards",
             [&] {
                 (void)sum_over_shards({a, b});
             }},
            {"nll_loss", [&] { (void)nll_loss(a, targets(1, 2)); }},
            {"cross_entropy", [&] { (void)cross_entropy(a, targets(1, 2)); }},
            {"cross_entropy", [&] { (void)CrossEntropyLoss{{.weight = on(1, {3})}}(a, targets(0, 2)); }},
            {"mse_loss", [&] { (void)mse_loss(a, b); }},
        },
        ": tensors are on different devices, cpu:0 and cpu:1; expected one device (use .to(device))");
}

TEST_CASE("messages of functions that are made of others name both") {
    const auto zeros = [](const Shape& shape) { return Tensor::zeros(shape); };
    const std::pair<const char*, Call> calls[] = {
        {"conv1d (conv2d): ",
         [&] {
             (void)conv1d(zeros({1, 2, 5}), zeros({1, 3, 2}));
         }},
        {"conv1d (conv2d): ",
         [&] {
             (void)conv1d(zeros({1, 2, 5}), zeros({1, 2, 7}));
         }},
        {"conv1d (conv2d): ",
         [&] {
             (void)conv1d(zeros({1, 2, 5}), zeros({1, 2, 2}), {}, 0);
         }},
        {"conv3d (conv2d): ",
         [&] {
             (void)conv3d(zeros({1, 2, 3, 4, 4}), zeros({1, 3, 1, 2, 2}));
         }},
        {"conv_transpose1d (conv_transpose2d): ",
         [&] {
             (void)conv_transpose1d(zeros({1, 2, 5}), zeros({3, 1, 2}));
         }},
        {"conv_transpose3d (conv_transpose2d): ",
         [&] {
             (void)conv_transpose3d(zeros({1, 2, 3, 4, 4}), zeros({3, 1, 1, 2, 2}));
         }},
        {"max_pool1d (max_pool2d): ",
         [&] {
             (void)max_pool1d(zeros({1, 2, 5}), 7);
         }},
        {"avg_pool3d (avg_pool2d): ",
         [&] {
             (void)avg_pool3d(zeros({1, 2, 3, 4, 4}), {1, 9, 9});
         }},
        {"adaptive_max_pool1d (adaptive_max_pool2d): ",
         [&] {
             (void)adaptive_max_pool1d(zeros({1, 2, 5}), 0);
         }},
        {"adaptive_avg_pool3d (adaptive_avg_pool2d): ",
         [&] {
             (void)adaptive_avg_pool3d(zeros({1, 2, 3, 4, 4}), {1, 0, 1});
         }},
        {"bmm (matmul): ",
         [&] {
             (void)bmm(zeros({2, 3, 4}), zeros({2, 3, 4}));
         }},
        {"conv2d: ",
         [&] {
             (void)conv2d(zeros({1, 2, 4, 4}), zeros({1, 3, 2, 2}));
         }},
    };
    for (const auto& [begin, call] : calls) {
        const std::string message = message_of<InvalidArgument>(call);
        INFO(message);
        CHECK(message.starts_with(begin));
    }
    // Layers are made of these functions.
    CHECK(message_of<InvalidArgument>([&] {
              (void)Conv1d(2, 3, 2)(zeros({1, 4, 5}));
          }) == "conv1d (conv2d): input (1, 4, 1, 5) has 4 channels; weight (3, 2, 1, 2) expects 2");
    // Other beginnings are unchanged.
    const ApiScope scope("f");
    for (const char* text : {"f: wrong", "Some class: wrong", "no name", "g:wrong", ": wrong", ""})
        CHECK(std::string(InvalidArgument(text).what()) == text);
    CHECK(std::string(InvalidArgument("g: wrong; h: too").what()) == "g: wrong; h: too");
    const ApiScope inner("g");
    CHECK(std::string(InvalidArgument("g: wrong; h: too").what()) == "f (g): wrong; h: too");
    CHECK(std::string(InvalidArgument("h: wrong").what()) == "h: wrong");
}

TEST_CASE("messages of layers that are derived from another one name the layer") {
    const std::string size = ": invalid num_features (0); expected a positive number";
    CHECK(message_of<InvalidArgument>([] { BatchNorm1d(0); }) == "BatchNorm1d" + size);
    CHECK(message_of<InvalidArgument>([] { BatchNorm2d(0); }) == "BatchNorm2d" + size);
    CHECK(message_of<InvalidArgument>([] { BatchNorm3d(0); }) == "BatchNorm3d" + size);
    CHECK(message_of<InvalidArgument>([] { SyncBatchNorm(0); }) == "SyncBatchNorm" + size);
    CHECK(message_of<InvalidArgument>([] { InstanceNorm1d(0); }) == "InstanceNorm1d" + size);
    CHECK(message_of<InvalidArgument>([] { InstanceNorm2d(0); }) == "InstanceNorm2d" + size);
    CHECK(message_of<InvalidArgument>([] { InstanceNorm3d(0); }) == "InstanceNorm3d" + size);
}

TEST_CASE("checked arguments name the call and return its tensors") {
    const Tensor a = on(0, {2, 3}), whole = Tensor::zeros({3}, DType::i64, Device::cpu(0));
    {
        const CheckedArgs call("f", {arg::floating("input", a), arg::optional("bias", {}), arg::any("target", whole)});
        CHECK(std::string(ApiScope::name()) == "f");
        CHECK(call[0].impl() == a.impl());
        CHECK_FALSE(call[1].defined());
        CHECK(call[2].impl() == whole.impl());
    }
    CHECK(ApiScope::name() == nullptr);
    const auto refused = [](std::initializer_list<CheckedArgs::Argument> arguments) {
        return message_of<InvalidArgument>([&] { const CheckedArgs call("f", arguments); });
    };
    CHECK(refused({arg::floating("input", {})}) == "f: input is undefined; expected a tensor");
    CHECK(refused({arg::floating("input", whole)}) ==
          "f: input (3,) has dtype i64; expected a floating dtype (use .to(DType::f32))");
    CHECK(refused({arg::floating("input", a), arg::optional("bias", whole)}) ==
          "f: bias has dtype i64; expected f32 like the others (use .to(dtype))");
    // Before any tensor is used.
    CHECK(refused({arg::floating("input", a), arg::any("target", on(1, {2}))}) ==
          "f: tensors are on different devices, cpu:0 and cpu:1; expected one device (use .to(device))");
    CHECK(message_of<InvalidArgument>([&] {
              (void)conv2d(on(0, {2, 3}), on(1, {2, 3}));
          }) == "conv2d: tensors are on different devices, cpu:0 and cpu:1; expected one device (use .to(device))");
}

TEST_CASE("tensors of a traced forward that are used outside it") {
    Trace trace({Device::cpu(0), 1, false, 1});
    const Tensor kept = trace.input(TensorMeta::contiguous(DType::f32, {2, 3, 4, 4}, true));
    const std::string text =
        ": a tensor of shape (2, 3, 4, 4) is from inside a forward or loss, where tensors have no values; expected "
        "forward to return it, in a tuple, vector, map or struct with LOCKSTEP_MEMBERS, and the use of the wrapper's "
        "result";
    const Tensor one = on(0, {1});
    check(
        {
            {"add", [&] { (void)(kept + 1.0); }},
            {"sub", [&] { (void)(1.0 - kept); }},
            {"mul", [&] { (void)(kept * one); }},
            {"div", [&] { (void)(2.0 / kept); }},
            {"neg", [&] { (void)(-kept); }},
            {"exp", [&] { (void)exp(kept); }},
            {"log", [&] { (void)log(kept); }},
            {"sqrt", [&] { (void)sqrt(kept); }},
            {"square", [&] { (void)square(kept); }},
            {"relu", [&] { (void)relu(kept); }},
            {"sum", [&] { (void)sum(kept); }},
            {"mean", [&] { (void)mean(kept, 1); }},
            {"argmax", [&] { (void)argmax(kept, 1); }},
            {"cat",
             [&] {
                 (void)cat({kept, kept});
             }},
            {"conv2d",
             [&] {
                 (void)conv2d(kept, on(0, {5, 3, 2, 2}));
             }},
            {"max_pool2d", [&] { (void)max_pool2d(kept, 2); }},
            {"batch_norm", [&] { (void)batch_norm(kept, {}, {}, {}, {}, {.training = true}); }},
            {"log_softmax", [&] { (void)log_softmax(kept, 1); }},
            {"dropout", [&] { (void)dropout(kept); }},
            {"dropout2d", [&] { (void)dropout2d(kept); }},
            {"sum_over_shards", [&] { (void)sum_over_shards(kept); }},
            {"mse_loss", [&] { (void)mse_loss(kept, kept); }},
            {"mean_loss", [&] { (void)mean_loss(kept); }},
            {"sum_loss", [&] { (void)sum_loss(kept); }},
            {"to(device)", [&] { (void)kept.to(Device::host()); }},
            {"to(dtype)", [&] { (void)kept.to(DType::f64); }},
            {"clone", [&] { (void)kept.clone(); }},
            {"copy_", [&] { (void)kept.copy_(one); }},
            {"fill_", [&] { (void)kept.fill_(0); }},
            {"to_vector", [&] { (void)kept.to_vector<float>(); }},
            {"data", [&] { (void)kept.data<float>(); }},
        },
        text);
    const Tensor single = trace.input(TensorMeta::contiguous(DType::f32, {}));
    CHECK(message_of<InvalidArgument>([&] {
              (void)single.item();
          }).starts_with("item: a tensor of shape () is from inside"));
    CHECK(message_of<InvalidArgument>([&] {
              (void)linear(kept, on(0, {5, 4}));
          }).starts_with("linear: a tensor of shape (24, 4) is from inside"));  // its rows
}

TEST_CASE("invalid arguments are rejected with the name of the function") {
    const Tensor i64 = Tensor::zeros({2, 3}, DType::i64), f32 = Tensor::zeros({2, 3});
    const auto begins = [](const char* name, const Call& call) {
        INFO(name);
        CHECK(message_of<InvalidArgument>(call).starts_with(std::string(name) + ": "));
    };
    begins("cross_entropy", [&] { (void)cross_entropy(i64, f32); });
    begins("cross_entropy", [&] { (void)cross_entropy(f32, i64); });
    begins("mean", [&] { (void)mean(i64); });
    begins("dropout", [&] { (void)dropout(i64); });
    begins("div", [&] { (void)(1.0 / Tensor()); });
    begins("flatten", [&] { (void)flatten(Tensor()); });
    begins("mul", [&] { (void)(Tensor() * 2.0); });
}

TEST_CASE("errors name the outermost function, and an operation that includes its name is not repeated") {
    CHECK(ApiScope::name() == nullptr);
    {
        const ApiScope outer("cross_entropy");
        const ApiScope inner("log_softmax");
        CHECK(std::string(ApiScope::name()) == "cross_entropy");
    }
    CHECK(ApiScope::name() == nullptr);
    CHECK(call_and_operation("cross_entropy", NllForward::name) == "cross_entropy (nll_forward)");
    CHECK(call_and_operation("conv2d", Conv2dForward{}.name()) == "conv2d_forward");
    CHECK(call_and_operation(nullptr, "touch") == "touch");
}
