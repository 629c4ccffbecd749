// Run states that older versions of the library wrote.
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/sealed_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/reference/relative_error.h"

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

/// The options of SGD's groups in the format of versions 1 and 2.
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

/// A state in the format of version 1 or 2: momentum from a valid one, `change`d JSON.
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

// The files were written by the library when each version was new: four steps of SavedTraining, and the weights three
// steps later, trained by that library. Weights that are read have the same bits. Further steps differ, because
// compilers and processors round differently; a lost momentum would be half of what the steps change.
TEST_CASE("checkpoints of earlier versions of the library are resumed") {
    const std::string version = GENERATE("1", "2", "3");
    CAPTURE(version);
    const std::filesystem::path stored = std::filesystem::path(STORED_CHECKPOINTS) / version;
    const SafetensorsFile state(resume_path(stored / "net.safetensors"));
    CHECK(json::parse(state.metadata().at("lockstep")).at("version") == std::stoi(version));

    SavedTraining training(9);
    const auto run = training.load(stored / "net.safetensors");
    REQUIRE(run);
    CHECK(run->steps == 4);
    CHECK(run->batch == 4);
    CHECK(run->batch_size == 5);
    CHECK(run->seed == 3);
    CHECK(run->fields.count("writer") == (version == "1" ? 0 : 1));
    const auto weights_in = [&](const char* file) {
        SavedTraining other(3);
        load(other.model(), stored / file);
        return other.weights();
    };
    const std::vector<float> resumed = weights_in("net.safetensors"),
                             later = weights_in("three-steps-later.safetensors");
    SavedTraining same_data(3);
    REQUIRE(same_data.load(stored / "net.safetensors"));
    CHECK((same_data.weights() == resumed));
    same_data.to(7);
    const double progress = reference::relative_error(resumed, later);
    CHECK(progress > 1e-3);
    CHECK(reference::relative_error(same_data.weights(), later) < 1e-3 * progress);
}

TEST_CASE("states of version 1 are still loaded, and their values are checked") {
    const SavedFiles good = saved_after(4);
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
        SavedTraining training(3);
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
    SavedTraining training(9);
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

TEST_CASE("states of version 2, which supported only SGD, are still loaded, by SGD only") {
    const SavedFiles good = saved_after(4);
    const TemporaryDirectory directory;
    const auto net = directory / "net";
    put_bytes(net, good.weights);
    put_bytes(directory / "net.resume", good.state);
    put_version(2, net, [](json& state) { state["fields"] = {{"best", "0.9"}}; });
    CHECK(get_bytes(directory / "net.resume") != good.state);
    CHECK(steps_loaded(directory) == 4);
    SavedTraining training(3);
    CHECK(training.load(net)->fields.at("best") == "0.9");
    const auto before = training.weights();
    Adam adam(training.model());
    CHECK_THROWS_WITH(load_checkpoint(training.model(), adam, net),
                      contains("the state of SGD, the optimizer is Adam"));
    CHECK((training.weights() == before));
    training.save(net);  // as this version does
    CHECK(steps_loaded(directory) == 4);
}
