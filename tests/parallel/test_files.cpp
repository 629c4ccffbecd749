// Files that replace others atomically: through links, with their modes, with other writers, under limits.
#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <functional>
#include <optional>
#include <thread>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file_lock.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/trusted_links.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;
using lockstep::AtomicFile;
using lockstep::internal::FileLock;

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

mode_t mode_of(const std::filesystem::path& path) {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

/// Exit status of `body` in a separate process, in the shell's form.
int status_of(const std::function<int()>& body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(body());
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Another process that has run `body` and then waits until the destructor kills it.
class Elsewhere {
public:
    explicit Elsewhere(const std::function<void()>& body) {
        std::array<int, 2> ends{};
        REQUIRE(::pipe(ends.data()) == 0);
        process_ = ::fork();
        REQUIRE(process_ >= 0);
        if (process_ == 0) {
            body();
            if (::write(ends[1], "x", 1) != 1) ::_exit(1);
            for (;;) ::pause();
        }
        char byte = 0;
        const bool done = ::read(ends[0], &byte, 1) == 1;
        for (const int end : ends) ::close(end);
        REQUIRE(done);
    }
    ~Elsewhere() { kill(); }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;
    void kill() {
        if (process_ < 0) return;
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
        process_ = -1;
    }
    pid_t process() const { return process_; }

private:
    pid_t process_ = -1;
};

}  // namespace

TEST_CASE("a symbolic link is kept and its target is replaced") {
    const TemporaryDirectory directory;
    std::filesystem::create_directory(directory / "far");
    put_bytes(directory / "far/file", "old");
    std::filesystem::create_symlink("far/file", directory / "link");
    std::filesystem::create_symlink(directory / "link", directory / "link to a link");
    std::filesystem::create_symlink("far/none yet", directory / "dangling");
    write(directory / "link to a link", "new");
    CHECK(get_bytes(directory / "far/file") == "new");
    write(directory / "dangling", "made");
    CHECK(get_bytes(directory / "far/none yet") == "made");
    for (const char* link : {"link", "link to a link", "dangling"})
        CHECK(std::filesystem::is_symlink(directory / link));
    CHECK(directory.file_count() == 4);
    std::filesystem::create_symlink("round", directory / "round");
    CHECK_THROWS_WITH(AtomicFile(directory / "round"), contains("form a cycle"));
}

TEST_CASE("with closed standard streams, printed text is in no file that is being written") {
    const TemporaryDirectory place;
    const auto print = [] {
        for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
            if (::write(stream, "printed\n", 8) != 8) return;
    };
    const int status = status_of([&] {
        for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO; ++stream) ::close(stream);
        const auto lock = FileLock::acquire(place / "other");
        print();
        for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO; ++stream) ::close(stream);
        AtomicFile file(place / "file");
        print();
        const std::string text = "text";
        file.write(std::as_bytes(std::span(text)));
        print();
        file.commit();
        for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO; ++stream) ::close(stream);
        EventLog log(place / "log");
        print();
        log.scalar("loss", 1, 0);
        log.flush();
        return get_bytes(place / "other.lock").find("printed") == std::string::npos ? 7 : 8;
    });
    CHECK(status == 7);
    CHECK(get_bytes(place / "file") == "text");
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place / "log")) {
        CHECK(get_bytes(entry.path()).find("printed") == std::string::npos);
        ++files;
    }
    CHECK(files == 2);
}

TEST_CASE("another user's link in a shared directory is not followed") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can give links away");
        return;
    }
    const TemporaryDirectory directory;
    constexpr uid_t stranger = 12345;
    std::filesystem::create_directories(directory / "shared/inner");
    put_bytes(directory / "precious", "old");
    const std::filesystem::path link = directory / "shared/link";
    std::filesystem::create_symlink(directory / "precious", link);
    std::filesystem::create_symlink(directory.path(), directory / "shared/way");
    std::filesystem::create_symlink(link, directory / "detour");
    const auto write = [](const std::filesystem::path& path) {
        AtomicFile file(path);
        file.write(std::as_bytes(std::span("new", 3)));
        file.commit();
    };
    const auto give_to = [&](uid_t owner) {
        REQUIRE(::lchown(link.c_str(), owner, owner) == 0);
        REQUIRE(::lchown((directory / "shared/way").c_str(), owner, owner) == 0);
    };
    give_to(stranger);
    for (const mode_t mode : {01777, 01757}) {
        REQUIRE(::chmod((directory / "shared").c_str(), mode) == 0);
        for (const auto& path :
             {link, directory / "shared/way/precious", directory / "shared/way/fresh", directory / "detour"}) {
            CAPTURE(path.string(), mode);
            CHECK_THROWS_AS(write(path), InvalidArgument);
            CHECK_THROWS_WITH(write(path), contains("a symbolic link of another user (12345)"));
            CHECK_THROWS_WITH(make_directories(path / "new/below"),
                              contains("a symbolic link of another user (12345)"));
            CHECK_THROWS_AS(internal::FileLock::acquire(path), InvalidArgument);
            CHECK_THROWS_AS(EventLog(path), InvalidArgument);
        }
    }
    CHECK(get_bytes(directory / "precious") == "old");
    CHECK_FALSE(std::filesystem::exists(directory / "fresh"));
    for (const mode_t mode : {0777, 0755, 01755}) {  // no other user may write there
        REQUIRE(::chmod((directory / "shared").c_str(), mode) == 0);
        CHECK_NOTHROW(write(link));
    }
    REQUIRE(::chmod((directory / "shared").c_str(), 01777) == 0);
    give_to(::geteuid());  // one of this user
    CHECK_NOTHROW(write(link));
    give_to(stranger);
    REQUIRE(::chown((directory / "shared").c_str(), stranger, stranger) == 0);  // one of the directory's owner
    CHECK_NOTHROW(write(link));
    CHECK(get_bytes(directory / "precious") == "new");
}

TEST_CASE("a lock file of another user that cannot be opened is named") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can act as other users");
        return;
    }
    const TemporaryDirectory directory;
    const std::filesystem::path shared = directory / "shared", file = shared / "net";
    std::filesystem::create_directory(shared);
    REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
    REQUIRE(::chmod(shared.c_str(), 0777) == 0);
    const std::filesystem::path lock = shared / "net.lock";
    put_bytes(lock, "");
    REQUIRE(::chmod(lock.c_str(), 0600) == 0);
    REQUIRE(::chown(lock.c_str(), 23456, 23456) == 0);
    REQUIRE(::seteuid(12345) == 0);
    const std::string said = message_of<InvalidArgument>([&] { internal::FileLock::acquire(file); });
    REQUIRE(::seteuid(0) == 0);
    CHECK(said ==
          "cannot write " + file.string() + ": its lock file " + lock.string() +
              " belongs to user 23456 (Permission denied); wait until that user has saved, or use another file");
    std::filesystem::remove(lock);
    CHECK_NOTHROW(internal::FileLock::acquire(file));
}

TEST_CASE("a log neither follows nor empties another user's link in a shared directory") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can give links away");
        return;
    }
    constexpr uid_t stranger = 12345;
    const std::string lines = "{\"step\":0}\n{\"step\":1}\n";
    for (const std::optional<std::int64_t> resume_step :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)})
        for (const bool chained : {false, true}) {
            CAPTURE(resume_step.has_value(), chained);
            const TemporaryDirectory directory;
            const std::filesystem::path shared = directory / "shared", link = shared / "log.jsonl";
            std::filesystem::create_directory(shared);
            std::filesystem::create_directory(directory / "own");
            put_bytes(directory / "precious", lines);
            std::filesystem::create_symlink(directory / "precious", link);
            std::filesystem::create_symlink(link, directory / "own/log.jsonl");
            REQUIRE(::lchown(link.c_str(), stranger, stranger) == 0);
            REQUIRE(::chmod(shared.c_str(), 01777) == 0);
            const std::filesystem::path place = chained ? directory / "own" : shared;
            const auto open = [&] { EventLog(place, {.resume_step = resume_step}); };
            CHECK_THROWS_AS(open(), InvalidArgument);
            CHECK_THROWS_WITH(open(), contains("a symbolic link of another user (12345)"));
            CHECK(get_bytes(directory / "precious") == lines);
            REQUIRE(::chmod(shared.c_str(), 0755) == 0);  // no other user may write there
            CHECK_NOTHROW(open());
            CHECK(get_bytes(directory / "precious") == (resume_step ? "{\"step\":0}\n" : ""));
        }
}

TEST_CASE("links of other users are found wherever they are in a path") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can give links away");
        return;
    }
    const TemporaryDirectory directory;
    const std::filesystem::path shared = directory / "shared", link = shared / "link";
    std::filesystem::create_directory(shared);
    std::filesystem::create_directories(directory / "target/inner");
    std::filesystem::create_directory_symlink(directory / "target", link);
    std::filesystem::create_directory_symlink("../shared/link/inner", directory / "target/around");
    std::filesystem::create_directory_symlink(link / "inner", directory / "first");
    std::filesystem::create_directory_symlink("first", directory / "second");
    REQUIRE(::lchown(link.c_str(), 12345, 12345) == 0);
    REQUIRE(::chmod(shared.c_str(), 01777) == 0);
    for (const auto& path :
         {link, link / "", link / "new", link / "inner/../new", directory / "first", directory / "second/new",
          directory / "target/around/new", shared / "../second/new", shared / "./link"}) {
        CAPTURE(path.string());
        CHECK_THROWS_AS(internal::require_trusted_links(path), InvalidArgument);
    }
    std::filesystem::create_symlink("cycle", directory / "cycle");
    for (const auto& path : {directory / "target/new", directory / "target/inner/../../shared/new", directory / "cycle",
                             std::filesystem::path(), std::filesystem::path("/"), shared / "no/such/link"}) {
        CAPTURE(path.string());
        CHECK_NOTHROW(internal::require_trusted_links(path));
    }
}

TEST_CASE("a replaced file keeps its mode and owner, and a new one follows umask") {
    const TemporaryDirectory directory;
    const mode_t before = ::umask(027);
    write(directory / "new", "1");
    CHECK(mode_of(directory / "new") == 0640);
    for (const mode_t mode : {0600, 0644, 0400, 0755}) {
        REQUIRE(::chmod((directory / "new").c_str(), mode) == 0);
        write(directory / "new", "2");
        CHECK(mode_of(directory / "new") == mode);
    }
    ::umask(before);
    REQUIRE(::chmod((directory / "new").c_str(), 0600) == 0);
    {
        AtomicFile beside(directory / "copy", directory / "new");
        beside.commit();
    }
    CHECK(mode_of(directory / "copy") == 0600);

    if (::geteuid() != 0) return;  // only root may create files of other users
    constexpr uid_t user = 4321;
    constexpr gid_t group = 5432;
    REQUIRE(::chown((directory / "new").c_str(), user, group) == 0);
    write(directory / "new", "3");
    struct stat status {};
    REQUIRE(::stat((directory / "new").c_str(), &status) == 0);
    CHECK(status.st_uid == user);
    CHECK(status.st_gid == group);
    CHECK(mode_of(directory / "new") == 0600);
    // Without permission to change the owner, the new file belongs to the writer, and others have no more access to it
    // than before.
    REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
    REQUIRE(::chmod((directory / "new").c_str(), 0660) == 0);
    CHECK(status_of([&] {
              if (::setgroups(0, nullptr) != 0 || ::setgid(7777) != 0 || ::setuid(7777) != 0) return 2;
              try {
                  write(directory / "new", "4");
              } catch (const std::exception&) {
                  return 1;
              }
              return 0;
          }) == 0);
    REQUIRE(::stat((directory / "new").c_str(), &status) == 0);
    CHECK(status.st_gid == 7777);
    CHECK(mode_of(directory / "new") == 0600);
}

TEST_CASE("the next writer removes files of killed writers and nothing else") {
    const TemporaryDirectory directory;
    const std::set<std::string> others{"file.tmp",     "file.1-2.tmp.old", "file.1-.tmp",
                                       "file.a-1.tmp", "other.1-2.tmp",    "xfile.1-2.tmp"};
    for (const std::string& name : others) put_bytes(directory / name, "mine");
    for (const char* name : {"file.1-2.tmp", "file.999999-0.tmp"}) put_bytes(directory / name, "left behind");
    Elsewhere alive([&] {
        const int file = ::open((directory / "file.77-7.tmp").c_str(), O_WRONLY | O_CREAT, 0600);
        if (file < 0 || ::flock(file, LOCK_EX) != 0) ::_exit(1);
    });
    write(directory / "file", "new");
    auto expected = others;
    expected.insert({"file", "file.77-7.tmp"});
    CHECK(directory.names() == expected);
    alive.kill();
    write(directory / "file", "newer");
    expected.erase("file.77-7.tmp");
    CHECK(directory.names() == expected);
    // A simultaneous writer is not disturbed, in the same process as well.
    AtomicFile slow(directory / "file");
    const std::string text = "slow";
    slow.write(std::as_bytes(std::span(text)));
    write(directory / "file", "quick");
    slow.commit();
    CHECK(get_bytes(directory / "file") == "slow");
    CHECK(directory.names() == expected);
}

TEST_CASE("a file size limit is an error and not fatal, unless the program handles the signal differently") {
    const TemporaryDirectory directory;
    const std::string text(100'000, 'x');
    CHECK(status_of([&] {
              const FileSizeLimit limit(1000);
              try {
                  write(directory / "file", text);
              } catch (const DataError& error) {
                  const std::string message = error.what();
                  return message.find("offset 1000: writing failed") != std::string::npos &&
                                 message.find("ulimit -f") != std::string::npos
                             ? 0
                             : 1;
              }
              return 2;
          }) == 0);
    // Later writes are unaffected: the signal ends programs that write directly.
    CHECK(status_of([&] {
              const FileSizeLimit limit(1000);
              try {
                  write(directory / "file", text);
              } catch (const DataError&) {
                  const int file = ::open((directory / "own").c_str(), O_WRONLY | O_CREAT, 0600);
                  while (::write(file, text.data(), text.size()) > 0) {
                  }
              }
              return 0;
          }) == 128 + SIGXFSZ);
    CHECK(status_of([&] {
              const FileSizeLimit limit(1000);
              std::signal(SIGXFSZ, [](int) { ::_exit(17); });
              write(directory / "file", text);
              return 0;
          }) == 17);
    CHECK(directory.names() == std::set<std::string>{"own"});
}

TEST_CASE("one process at a time writes a file, and the other's error names it") {
    const TemporaryDirectory directory;
    std::filesystem::create_symlink("net", directory / "link");
    std::filesystem::create_directory(directory / "folder");
    const auto net = directory / "net";
    {
        const auto lock = FileLock::acquire(net);
        CHECK(FileLock::acquire(directory / "folder/../link") == lock);  // the same file, and this process has it
        CHECK(FileLock::acquire(directory / "other") != lock);
        CHECK(directory.names().contains("net.lock"));
    }
    CHECK_FALSE(directory.names().contains("net.lock"));

    std::shared_ptr<FileLock> theirs;
    Elsewhere holder([&] { theirs = FileLock::acquire(directory / "link"); });
    const std::string who = "process " + std::to_string(holder.process());
    CHECK_THROWS_AS(FileLock::acquire(net), InvalidArgument);
    CHECK_THROWS_WITH(FileLock::acquire(net), contains(who) && contains("is saving to it") && contains(net.string()));
    CHECK_THROWS_WITH(CheckpointLock(net), contains("is saving to it"));
    holder.kill();
    CHECK(directory.names().contains("net.lock"));  // left by the killed holder
    {
        const auto taken = FileLock::acquire(net);
        CHECK(get_bytes(directory / "net.lock").starts_with("process " + std::to_string(::getpid())));
    }
    CHECK(directory.names() == std::set<std::string>{"folder", "link"});
}

TEST_CASE("a forked process does not share its parent's lock") {
    const TemporaryDirectory directory;
    auto lock = FileLock::acquire(directory / "net");
    CHECK(status_of([&] {
              try {
                  FileLock::acquire(directory / "net");
              } catch (const InvalidArgument&) {
                  lock.reset();  // this process does not hold the lock
                  return 0;
              }
              return 1;
          }) == 0);
    CHECK(directory.names().contains("net.lock"));
    lock.reset();
    CHECK(directory.names().empty());
}

TEST_CASE("another user's file is not mistaken for a lock") {
    const TemporaryDirectory directory;
    put_bytes(directory / "net.lock", "versions = 3");
    CHECK_THROWS_WITH(FileLock::acquire(directory / "net"), contains("net.lock would be its lock"));
    CHECK(get_bytes(directory / "net.lock") == "versions = 3");
    std::filesystem::create_directory(directory / "folder.lock");
    REQUIRE(::mkfifo((directory / "fifo.lock").c_str(), 0600) == 0);
    std::filesystem::create_symlink(directory / "net.lock", directory / "link.lock");
    for (const std::string name : {"folder", "fifo", "link"}) {
        const std::string file = (directory / name).string();
        CHECK(message_of<InvalidArgument>([&] { FileLock::acquire(file); }) ==
              "cannot write " + file + ": its lock file " + file +
                  ".lock is not a regular file; remove it, or use another file");
        CHECK(std::filesystem::exists(std::filesystem::symlink_status(file + ".lock")));
    }
    CHECK_THROWS_WITH(FileLock::acquire(directory / "none" / "net"), contains("No such file"));
    CHECK_THROWS_WITH(FileLock::acquire(directory.path()), contains("a directory"));
}

TEST_CASE("many processes that request one lock get it in turn") {
    const TemporaryDirectory directory;
    const auto net = directory / "net", count = directory / "count";
    put_bytes(count, "0");
    constexpr int processes = 6, turns = 30;
    std::vector<pid_t> children;
    for (int i = 0; i < processes; ++i) {
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child > 0) {
            children.push_back(child);
            continue;
        }
        for (int turn = 0; turn < turns;) {
            try {
                const auto lock = FileLock::acquire(net);
                const int number = std::stoi(get_bytes(count));
                std::this_thread::sleep_for(std::chrono::microseconds(200));
                put_bytes(count, std::to_string(number + 1));
                ++turn;
            } catch (const InvalidArgument&) {
                std::this_thread::yield();
            }
        }
        ::_exit(0);
    }
    for (const pid_t child : children) {
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    CHECK(get_bytes(count) == std::to_string(processes * turns));
    CHECK(directory.names() == std::set<std::string>{"count"});
}
