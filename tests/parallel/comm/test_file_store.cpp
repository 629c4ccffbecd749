// The store in a file: remains of dying processes, and files that other users could have created.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::ForkedRanks;
using lockstep::test::message_of;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

std::string refusal(const std::filesystem::path& file) {
    return message_of<InvalidArgument>([&] { FileStore{file}; });
}

void wait_for_key(FileStore& store, const std::string& key) { store.get(key, test::no_limit); }

}  // namespace

TEST_CASE("a file store survives writers that die, and rejects files that are not stores") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore store(file, test::no_limit);
    store.set("key", "value");
    const auto size = std::filesystem::file_size(file);
    for (const std::size_t kept : {std::size_t{1}, std::size_t{5}, std::size_t{12}}) {
        store.set("torn", "in two");
        std::filesystem::resize_file(file, size + kept);
        CHECK(store.get("key") == "value");
        CHECK_FALSE(store.try_get("torn").has_value());
    }
    store.set("next", "after the damage");
    CHECK(FileStore(file).get("next") == "after the damage");
    CHECK(store.count() == 2);

    std::ofstream(file, std::ios::trunc) << "#!/bin/sh\necho another kind of file\n";
    CHECK(contains(message_of<DataError>([&] { store.get("key"); }), "byte 0"));
    CHECK(contains(message_of<DataError>([&] { FileStore{file}; }), file.string()));
    CHECK(contains(message_of<InvalidArgument>([&] { FileStore(folder / "no/store"); }), "No such file"));
    CHECK(contains(message_of<InvalidArgument>([] { PrefixStore("a", nullptr); }), "the store is null"));
}

TEST_CASE("a file store reads each change once") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore store(file, test::no_limit);
    const std::unique_ptr<Store> clone = store.clone(test::no_limit);
    store.set("key", "value");
    CHECK(clone->get("key", test::no_limit) == "value");
    const auto size = std::filesystem::file_size(file);
    {
        std::fstream changed(file, std::ios::in | std::ios::out);
        changed.seekp(static_cast<std::streamoff>(size) - 5);
        changed << "other";
    }
    FileStore late(file, test::no_limit);
    CHECK(late.get("key") == "other");
    late.set("more", "later");
    CHECK(store.get("more") == "later");
    CHECK(store.get("key") == "value");
    CHECK(clone->get("key", test::no_limit) == "value");
    CHECK(clone->add("sum", 2) == 2);
    CHECK(store.add("sum", 3) == 5);
    CHECK(late.remove("key"));
    CHECK_FALSE(store.try_get("key").has_value());
    CHECK(clone->count() == 2);
}

TEST_CASE("a change that a file store could not write has no effect") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore store(file, test::no_limit);
    store.set("sum", "1");
    store.set("key", "value");
    {
        const test::FileSizeLimit limit(std::filesystem::file_size(file) + 3);
        CHECK(contains(message_of<CommunicationError>([&] { store.add("sum", 1); }), "cannot write to it"));
        CHECK(contains(message_of<CommunicationError>([&] { store.compare_set("key", "value", "no"); }), "write"));
        CHECK(contains(message_of<CommunicationError>([&] { store.remove("key"); }), "cannot write to it"));
        CHECK(store.get("sum") == "1");
        CHECK(store.get("key") == "value");
    }
    CHECK(store.add("sum", 1) == 2);
    CHECK(FileStore(file, test::no_limit).get("key") == "value");
}

TEST_CASE("a file store waits for a lock until its time limit, and is not created again") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore store(file, milliseconds(200));
    store.set("key", "value");
    const std::unique_ptr<Store> other = store.clone(milliseconds(50));
    {
        const Descriptor stopped(open(file.c_str(), O_RDWR | O_CLOEXEC));
        struct flock as_writer {};
        as_writer.l_type = F_WRLCK;
        as_writer.l_start = off_t{1} << 40;
        as_writer.l_len = 1;
        REQUIRE(fcntl(stopped.get(), F_OFD_SETLK, &as_writer) == 0);
        const auto begin = Clock::now();
        CHECK(contains(message_of<CommunicationError>([&] { store.try_get("key"); }), "held its lock for 200 ms"));
        CHECK(contains(message_of<CommunicationError>([&] { other->set("key", "no"); }), "held its lock for 50 ms"));
        CHECK(Clock::now() - begin < test::hang);
    }
    CHECK(store.get("key") == "value");
    std::filesystem::remove(file);
    CHECK(contains(message_of<CommunicationError>([&] { other->try_get("key"); }), "it was removed"));
    CHECK(contains(message_of<CommunicationError>([&] { store.clone()->set("key", "value"); }), "it was removed"));
    CHECK(folder.file_count() == 0);
}

TEST_CASE("files of killed processes are not used as the store of the next job") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    const auto use_it = [&](int rank) {
        FileStore store(file);
        store.set("rank " + std::to_string(rank), "was here");
        wait_for_key(store, "never set");
        return std::vector<std::string>();
    };
    {
        ForkedRanks ranks(2, use_it);
        {
            FileStore store(file);
            wait_for_key(store, "rank 0");
            wait_for_key(store, "rank 1");
        }
        ranks.signal(0, SIGKILL);
        REQUIRE(waitid(P_PID, static_cast<id_t>(ranks.pid(0)), nullptr, WEXITED | WNOWAIT) == 0);
        CHECK(FileStore(file).count() == 2);  // rank 1 has registered
        ranks.signal(1, SIGKILL);
        REQUIRE(waitid(P_PID, static_cast<id_t>(ranks.pid(1)), nullptr, WEXITED | WNOWAIT) == 0);
    }
    REQUIRE(std::filesystem::file_size(file) > 0);
    FileStore next(file);
    CHECK(next.count() == 0);
    next.set("key", "value");
    CHECK(FileStore(file).get("key") == "value");
}

TEST_CASE("a store whose file was removed does not use another of the same name") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore old(file);
    old.set("key", "old");
    old.remove_file(test::no_limit);
    CHECK_FALSE(std::filesystem::exists(file));
    FileStore current(file);
    CHECK(contains(message_of<CommunicationError>([&] { old.set("key", "value"); }), "it was removed"));
    CHECK(contains(message_of<CommunicationError>([&] { old.remove_file(test::no_limit); }), "it was removed"));
    CHECK(current.count() == 0);
}

TEST_CASE("a file store that others created or can change is rejected, and other files are not emptied") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    {
        FileStore store(file);
        store.set("key", "value");
        struct stat found {};
        REQUIRE(stat(file.c_str(), &found) == 0);
        CHECK((found.st_mode & 0777) == 0600);
        for (const mode_t mode : {0620, 0602, 0666}) {
            chmod(file.c_str(), mode);
            CHECK(contains(refusal(file), "others can write it"));
            CHECK(contains(message_of<InvalidArgument>([&] { store.get("key"); }), "others can write it"));
        }
        chmod(file.c_str(), 0644);
        CHECK(store.get("key") == "value");
    }
    std::filesystem::create_symlink(file, folder / "link");
    CHECK(contains(refusal(folder / "link"), "symbolic link"));
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK(contains(refusal(folder / "pipe"), "not a regular file"));
    CHECK(contains(refusal(folder.path()), folder.path().string()));

    // The modes do not depend on the umask.
    const auto put = [&](const char* name, const std::string& text) {
        test::put_bytes(folder / name, text);
        chmod((folder / name).c_str(), 0644);
    };
    const std::string notes = "lockstep is a library\n";
    put("notes", notes);
    CHECK(contains(message_of<DataError>([&] { FileStore(folder / "notes"); }), "not a file store"));
    CHECK(test::get_bytes(folder / "notes") == notes);
    put("older", "lockstep file store 1\n");
    CHECK(contains(message_of<DataError>([&] { FileStore(folder / "older"); }), "another version"));

    std::filesystem::create_directory(folder / "open");
    chmod((folder / "open").c_str(), 0777);
    CHECK(contains(refusal(folder / "open/store"), "any user can replace files in"));
    chmod((folder / "open").c_str(), 01777);  // as /tmp
    CHECK_NOTHROW(FileStore(folder / "open/store").set("key", "value"));
}

TEST_CASE("a file store of another user is rejected") {
    const test::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "store";
    FileStore store(file);
    store.set("key", "value");
    if (chown(file.c_str(), 1, 1) != 0) {
        WARN("skipped: only root can give files away");
        return;
    }
    CHECK(contains(refusal(file), "it belongs to user 1, this process to user"));
    CHECK(contains(message_of<InvalidArgument>([&] { store.set("key", "more"); }), "it belongs to user 1"));
}

TEST_CASE("a file store does not follow another user's link to a directory") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can give links away");
        return;
    }
    const test::TemporaryDirectory folder;
    std::filesystem::create_directories(folder / "shared");
    std::filesystem::create_directories(folder / "target/inner");
    REQUIRE(chmod((folder / "shared").c_str(), 01777) == 0);
    std::filesystem::create_symlink(folder / "target", folder / "shared/job");
    std::filesystem::create_symlink(folder / "shared/job", folder / "detour");
    REQUIRE(lchown((folder / "shared/job").c_str(), 12345, 12345) == 0);
    for (const char* file : {"shared/job/store", "shared/job/inner/store", "detour/store"}) {
        INFO(file);
        CHECK(contains(refusal(folder / file), "it is a symbolic link of another user (12345)"));
    }
    CHECK(std::filesystem::is_empty(folder / "target/inner"));
    REQUIRE(lchown((folder / "shared/job").c_str(), ::geteuid(), ::getegid()) == 0);
    CHECK_NOTHROW(FileStore(folder / "detour/store").set("key", "value"));
}
