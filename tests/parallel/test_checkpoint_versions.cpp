// States of runs that older versions of the library wrote.
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/sealed_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/saved_pairs.h"

using namespace lockstep;
using namespace lockstep::test;
using namespace saved_training;
using nlohmann::json;

namespace {

/// The options of SGD's groups as versions 1 and 2 wrote them.
json groups_of_sgd(const json& groups) {
    json old = json::array();
    for (const json& group : groups) {
        json each;
        for (const char* name : {"nesterov", "maximize"}) each[name] = group.at(name).get<double>() != 0;
        for (const char* name : {"lr", "momentum", "dampening", "weight_decay"}) each[name] = group.at(name);
        old.push_back(each);
    }
    return old;
}

/// A state as version 1 or 2 wrote it: momentum from a good one, `change`d JSON.
template <class Change>
void put_version(int version, const std::filesystem::path& checkpoint, Change change) {
    const std::string weights = get_bytes(checkpoint);
    const SafetensorsFile file(resume_path(checkpoint));
    json state = json::parse(file.metadata().at("lockstep"));
    state["version"] = version;
    state["sgd"] = groups_of_sgd(state.at("optimizer").at("groups"));
    state.erase("optimizer");
    if (version == 1) {
        state.erase("weights");
        state.erase("fields");
        state["checkpoint_crc32"] =
            ::crc32(0, reinterpret_cast<const Bytef*>(weights.data()), static_cast<uInt>(weights.size()));
    }
    change(state);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<SafetensorsTensor> tensors;
    bytes.reserve(file.entries().size());
    for (const SafetensorsEntry& entry : file.entries()) {
        file.read(entry.name, bytes.emplace_back(entry.bytes));
        const std::string parameter = entry.name.substr(entry.name.find('.') + 1);
        tensors.push_back({parameter, entry.dtype, entry.shape, bytes.back().data()});
    }
    const std::filesystem::path path = resume_path(checkpoint);
    if (version == 1) {
        write_safetensors(path, tensors, {{"lockstep", state.dump()}});
    } else {
        AtomicFile sealed(path);
        internal::write_sealed(sealed, path, tensors, {{"lockstep", state.dump()}});
        sealed.commit();
    }
}

}  // namespace

TEST_CASE("states of version 1 are loaded as before, and their values are checked") {
    const Saved good = saved_after(4);
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    const auto put = [&](const auto& change) {
        put_bytes(net, good.weights);
        put_bytes(directory / "net.resume", good.state);
        put_version(1, net, change);
    };
    put([](json&) {});
    CHECK(steps_loaded(directory) == 4);
    {
        Training training(3);
        load(training.model(), net);
        CHECK(load_resume(training.model(), training.sgd(), net).steps == 4);
        training.to(6);
        save(training.model(), net);
        CHECK_THROWS_WITH(training.load(net), contains("does not belong to"));
    }
    struct Bad {
        const char* name;
        json value;
    };
    Training training(9);
    const auto before = training.weights();
    for (const auto& [name, value] : std::vector<Bad>{{"epoch", -1},
                                                      {"epoch", ~std::uint64_t{0}},
                                                      {"epoch", 1.5},
                                                      {"epoch", "1"},
                                                      {"batch", -1},
                                                      {"batch", ~std::uint64_t{0}},
                                                      {"batch_size", 0},
                                                      {"batch_size", -5},
                                                      {"steps", -1},
                                                      {"steps", ~std::uint64_t{0}},
                                                      {"seed", -1},
                                                      {"version", 3},
                                                      {"version", 2},
                                                      {"checkpoint_crc32", 1},
                                                      {"checkpoint_crc32", nullptr}}) {
        CAPTURE(name, value.dump());
        put([&, name = name, value = value](json& state) { state[name] = value; });
        CHECK_THROWS_AS(training.load(net), DataError);
    }
    for (const char* rate : {"lr", "momentum", "weight_decay", "dampening"}) {
        CAPTURE(rate);
        for (const json& value : {json(-0.5), json(nullptr), json("0.1")}) {
            if (std::string(rate) == "dampening" && value == json(-0.5)) continue;
            put([&](json& state) { state["sgd"][0][rate] = value; });
            CHECK_THROWS_AS(training.load(net), DataError);
        }
    }
    CHECK((training.weights() == before));
}

TEST_CASE("states of version 2, which knew SGD alone, are loaded as before, and by no other optimizer") {
    const Saved good = saved_after(4);
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    put_bytes(net, good.weights);
    put_bytes(directory / "net.resume", good.state);
    put_version(2, net, [](json& state) { state["fields"] = {{"best", "0.9"}}; });
    CHECK(get_bytes(directory / "net.resume") != good.state);
    CHECK(steps_loaded(directory) == 4);
    Training training(3);
    CHECK(training.load(net)->fields.at("best") == "0.9");
    const auto before = training.weights();
    Adam adam(training.model());
    CHECK_THROWS_WITH(load_checkpoint(training.model(), adam, net),
                      contains("the state of SGD, the optimizer is Adam"));
    CHECK((training.weights() == before));
    training.save(net);  // as this version does
    CHECK(steps_loaded(directory) == 4);
}
