// Writes the outputs of the mnist sample's networks for a test set, for tests/pytorch/check_checkpoint.py.
// usage: dump_logits cnn|small CHECKPOINT DATA OUTPUT
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;

namespace {

template <class Net>
void dump(const ls::MnistOptions& pixels, char** arguments) {
    ls::DataParallel model(Net{}, ls::Devices::visible());
    ls::load(model, arguments[2]);
    model.eval();
    const ls::Mnist images(arguments[3], pixels);
    ls::Loader batches(model, images, {.batch_size = 101});  // an odd number, which gives shards of two lengths
    const ls::NoGrad no_grad;
    std::vector<float> logits;
    for (auto& [input, label] : batches.epoch(0)) {
        const std::vector<float> some = model.forward(input).template to_vector<float>();
        logits.insert(logits.end(), some.begin(), some.end());
    }
    ls::write_safetensors(arguments[4], {{"logits", ls::DType::f32, {images.size(), 10}, logits.data()}});
}

}  // namespace

int main(int count, char** arguments) {
    const std::string net = count == 5 ? arguments[1] : "";
    if (net != "cnn" && net != "small") {
        std::fputs("usage: dump_logits cnn|small CHECKPOINT DATA OUTPUT\n", stderr);
        return 2;
    }
    try {
        if (net == "cnn")
            dump<ls::test::Cnn>({.train = false}, arguments);
        else
            dump<ls::test::Small>({.train = false, .mean = 0.1307, .stddev = 0.3081}, arguments);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_logits: %s\n", error.what());
        return 1;
    }
    return 0;
}
