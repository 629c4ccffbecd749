// Networks of every kind in steps: the bits do not depend on the number of devices.
#include <string>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/recurrent.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/ops/transformer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/models.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

constexpr std::int64_t rows = 10, length = 4, features = 6, classes = 3;

struct Recurrent {
    ls::LSTM lstm{features, 5, {.num_layers = 2, .dropout = 0.2}};
    ls::GRU gru{5, 4, {.bidirectional = true}};
    ls::Linear head{8, classes};
    LOCKSTEP_MEMBERS(lstm, gru, head)
    ls::Tensor forward(const ls::Tensor& x) { return head(ls::mean(gru(lstm(x).output).output, 1)); }
};

struct CausalEncoder {
    ls::TransformerEncoderLayer first{features, 2, {.dim_feedforward = 8}};
    ls::RMSNorm norm{features};
    ls::Linear head{features, classes};
    LOCKSTEP_MEMBERS(first, norm, head)
    ls::Tensor forward(const ls::Tensor& x) { return head(ls::mean(norm(first(x, {.is_causal = true})), 1)); }
};

/// The second half of a sequence, from the first half.
struct Translator {
    ls::Transformer model{features, 2, {.num_encoder_layers = 1, .num_decoder_layers = 2, .dim_feedforward = 8}};
    ls::Linear head{features, classes};
    LOCKSTEP_MEMBERS(model, head)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor first = x.slice(1, 0, length / 2), second = x.slice(1, length / 2, length);
        const ls::Tensor ignored = first.select(2, 0) < -0.5;
        return head(ls::mean(
            model(first, second,
                  {.src_key_padding_mask = ignored, .memory_key_padding_mask = ignored, .tgt_is_causal = true}),
            1));
    }
};

/// Sequences as images with one row of numbers for every position.
struct Convolutional {
    ls::Conv1d sequence{length, 4, 3, {.padding = 1}};
    ls::Conv2d conv{1, 4, 3, {.padding = 1}};
    ls::GroupNorm norm{2, 4};
    ls::BatchNorm1d last{8};
    ls::PReLU slope{4};
    ls::Linear head{8, classes};
    LOCKSTEP_MEMBERS(sequence, conv, norm, last, slope, head)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor y = slope(norm(conv(sequence(x).unsqueeze(1))));
        const ls::Tensor small = ls::avg_pool2d(ls::hardswish(y), 2);
        const ls::Tensor tall = ls::flatten(ls::adaptive_avg_pool2d(small, {2, 1}), 1);
        return head(last(tall));
    }
};

/// MobileNet's block: pointwise, depthwise and pointwise convolutions, the second with dilation.
struct Separable {
    ls::Conv2d widen{1, 12, 1, {.bias = false}};
    ls::BatchNorm2d norm1{12}, norm2{12}, norm3{4};
    ls::Conv2d depthwise{12, 12, 3, {.padding = 2, .dilation = 2, .groups = 12, .bias = false}};
    ls::Conv2d strided{12, 12, 5, {.stride = {1, 2}, .padding = 2, .groups = 12}};
    ls::Conv2d narrow{12, 4, 1, {.groups = 2, .bias = false}};
    ls::Linear head{4, classes};
    LOCKSTEP_MEMBERS(widen, norm1, depthwise, norm2, strided, narrow, norm3, head)
    ls::Tensor forward(const ls::Tensor& x) {
        const ls::Tensor wide = ls::relu6(norm1(widen(x.unsqueeze(1))));
        const ls::Tensor mixed = ls::relu(norm2(depthwise(wide))) + wide;
        const ls::Tensor y = norm3(narrow(ls::hardswish(strided(mixed))));
        return head(ls::flatten(ls::adaptive_avg_pool2d(y, 1), 1));
    }
};

ls::Tensor sequences() {
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * length * features; ++i)
        values.push_back(static_cast<float>(i * i % 23) / 11 - 1);
    return ls::Tensor::from(values, {rows, length, features});
}

ls::Tensor labels() {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < rows; ++i) values.push_back(i % classes);
    return ls::Tensor::from(values, {rows});
}

/// All parameters after some steps, and the last loss.
template <class Net>
std::vector<float> trained(int devices, double& loss) {
    ls::manual_seed(81);
    ls::DataParallel<Net> model(Net{}, cpu_devices(devices), {.shards = 8});
    ls::SGD sgd(model, {.lr = 0.3});
    const ls::CrossEntropyLoss smooth{{.label_smoothing = 0.1}};
    for (int i = 0; i < 8; ++i) loss = model.step(sgd, sequences(), labels(), smooth).item();
    model.engine().verify_replicas();
    return flat_weights_of(model);
}

template <class Net>
void check_devices() {
    double first = 0, loss = 0;
    const std::vector<float> one = trained<Net>(1, first);
    CHECK(first < 1.1);  // log(3) without training
    for (const int devices : {2, 3, 8}) {
        CHECK(trained<Net>(devices, loss) == one);
        CHECK(loss == first);
    }
}

}  // namespace

TEST_CASE("recurrent networks get the same bits on 1, 2, 3 and 8 devices") { check_devices<Recurrent>(); }
TEST_CASE("transformers get the same bits on 1, 2, 3 and 8 devices") { check_devices<CausalEncoder>(); }
TEST_CASE("encoders with decoders get the same bits on 1, 2, 3 and 8 devices") { check_devices<Translator>(); }
TEST_CASE("networks with group norm and average pooling get the same bits on 1, 2, 3 and 8 devices") {
    check_devices<Convolutional>();
}
TEST_CASE("depthwise and dilated convolutions get the same bits on 1, 2, 3 and 8 devices") {
    check_devices<Separable>();
}

TEST_CASE("networks that people train get the same bits on 1, 2, 3 and 8 devices") {
    for_each_model([]<class Net>(const char* name, std::type_identity<Net>) {
        INFO(name);
        const auto on = [](int devices) {
            ls::manual_seed(82);
            ls::DataParallel<Net> model(Net(), cpu_devices(devices), {.shards = 8});
            return trained_model<Net>(model);
        };
        const std::vector<float> one = on(1);
        CHECK(one[2] < one[0]);
        for (const int devices : {2, 3, 8}) CHECK(on(devices) == one);
    });
}
