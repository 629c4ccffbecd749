#include "lockstep/parallel/comm/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::shm {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t slots_at = round_up(sizeof(Header), page);
constexpr std::size_t rings_at = slots_at + slots * slot_bytes;
static_assert(slot_bytes % page == 0 && sizeof(Ring) % cache_line == 0);

std::size_t bytes_for(int size) { return rings_at + static_cast<std::size_t>(size) * sizeof(Ring); }

}  // namespace

Segment::Segment(int size, Descriptor& file) : Segment() {
    bytes_ = bytes_for(size);
    file = Descriptor(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file || ftruncate(file.get(), static_cast<off_t>(bytes_)) != 0 ||
        fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw TransportError(fmt::format("cannot create {} bytes of shared memory: {}", bytes_, text_of(errno)));
    map(file);
    Header* header = new (base_) Header{};
    if (getrandom(&header->nonce, sizeof header->nonce, 0) != sizeof header->nonce ||
        sched_getaffinity(0, sizeof header->cores, &header->cores) != 0)
        throw TransportError("the system provides no random number or no list of cores: " + text_of(errno));
}

Segment::Segment(int size, const Descriptor& file, std::uint64_t nonce) : Segment() {
    bytes_ = bytes_for(size);
    struct stat info {};
    if (fstat(file.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes_)
        throw TransportError("its memory has another size; start all ranks with the same program");
    map(file);
    if (header().nonce != nonce)
        throw TransportError("its memory belongs to another group; start all ranks with the same program");
}

void Segment::map(const Descriptor& file) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) throw TransportError("cannot map shared memory: " + text_of(errno));
    base_ = static_cast<std::byte*>(at);
}

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Segment::~Segment() {
    if (base_) munmap(base_, bytes_);
}

Header& Segment::header() const { return *std::launder(reinterpret_cast<Header*>(base_)); }
std::byte* Segment::slot(std::uint64_t round) const { return base_ + slots_at + round % slots * slot_bytes; }
Ring& Segment::ring(int to) const {
    return *std::launder(reinterpret_cast<Ring*>(base_ + rings_at + static_cast<std::size_t>(to) * sizeof(Ring)));
}

}  // namespace lockstep::shm
