// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process that a test kills: counts the calls that change files below one directory, and at
// a chosen one ends the process before, after or in the middle of it. Can also lose the page cache: what was
// written since a file's last sync is then partly undone first, as after a power cut.
//
// Idle until tutti_crash_arm. Creation, removal and renaming of names are counted but not undone.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, BUCKETS = 1 << 14, MAX_FILES = 256 };
enum { KILL_BEFORE, KILL_AFTER, KILL_IN_THE_MIDDLE };

struct page {
  struct page* next;
  int file;
  off_t number;
  ssize_t size;  // of the bytes below; less than PAGE where the file ended
  char bytes[PAGE];
};

struct file {
  dev_t device;
  ino_t inode;
  int fd;         // never closed: that would drop the process' POSIX locks on the file
  off_t size;     // when it was last durable
  int changed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static long calls;
static long kill_at;
static int kill_how;
static int lose_cache;
static unsigned seed;
static struct file files[MAX_FILES];
static int file_count;
static struct page* pages[BUCKETS];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Starts counting. `at` is the number of the call that kills, 0 for none.
void tutti_crash_arm(const char* directory, long at, int how, int lose, unsigned random_seed) {
  pthread_mutex_lock(&lock);
  strncpy(root, directory, sizeof root - 1);
  root_length = strlen(root);
  calls = 0;
  kill_at = at;
  kill_how = how;
  lose_cache = lose;
  seed = random_seed;
  pthread_mutex_unlock(&lock);
}

long tutti_crash_calls(void) { return calls; }

static int below_root(const char* path) { return root_length && strncmp(path, root, root_length) == 0; }

static int is_ours(int fd) {
  char link[64], path[PATH_MAX];
  if (!root_length) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below_root(path);
}

static int number_of(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  for (int i = 0; i < file_count; ++i) {
    if (files[i].device == info.st_dev && files[i].inode == info.st_ino) {
      if (!files[i].changed) files[i].size = info.st_size;
      return i;
    }
  }
  if (file_count == MAX_FILES) return -1;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int copy = open(link, O_RDWR | O_CLOEXEC);
  if (copy < 0) return -1;
  files[file_count] = (struct file){info.st_dev, info.st_ino, copy, info.st_size, 0};
  return file_count++;
}

// Keeps the content that pages have before their first change since the file was durable.
static void remember(int fd, off_t start, off_t end) {
  int file = lose_cache ? number_of(fd) : -1;
  if (file < 0) return;
  files[file].changed = 1;
  for (off_t number = start / PAGE; number * PAGE < end; ++number) {
    struct page** bucket = &pages[((uint64_t)number * 31 + (uint64_t)file * 7919) % BUCKETS];
    struct page* each = *bucket;
    while (each && (each->file != file || each->number != number)) each = each->next;
    if (each) continue;
    each = malloc(sizeof *each);
    each->file = file;
    each->number = number;
    each->size = pread(files[file].fd, each->bytes, PAGE, number * PAGE);
    each->next = *bucket;
    *bucket = each;
  }
}

static void forget(int fd) {
  int file = lose_cache ? number_of(fd) : -1;
  if (file < 0) return;
  files[file].changed = 0;
  for (int i = 0; i < BUCKETS; ++i) {
    for (struct page** each = &pages[i]; *each;) {
      struct page* found = *each;
      if (found->file == file) {
        *each = found->next;
        free(found);
      } else {
        each = &found->next;
      }
    }
  }
}

// For each file by chance: all that is not durable is lost, none of it, or some pages of it.
static void lose(void) {
  int choice[MAX_FILES];
  struct stat info;
  for (int i = 0; i < file_count; ++i) choice[i] = files[i].changed ? rand_r(&seed) % 3 : 1;
  for (int i = 0; i < BUCKETS; ++i) {
    for (struct page* each = pages[i]; each; each = each->next) {
      int how = choice[each->file];
      if (how == 1 || each->size <= 0 || (how == 2 && rand_r(&seed) % 2)) continue;
      if (how == 2 && (fstat(files[each->file].fd, &info) || each->number * PAGE + each->size > info.st_size)) {
        continue;
      }
      if (REAL(pwrite64)(files[each->file].fd, each->bytes, each->size, each->number * PAGE) < 0) continue;
    }
  }
  for (int i = 0; i < file_count; ++i) {
    if (choice[i] == 0 && REAL(ftruncate64)(files[i].fd, files[i].size)) continue;
  }
}

static void end(void) {
  if (lose_cache) lose();
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Locks for one call; returns whether it is the one that shall not end well.
static int begin(void) {
  pthread_mutex_lock(&lock);
  int last = ++calls == kill_at;
  if (last && kill_how == KILL_BEFORE) end();
  return last;
}

static void finish(int last) {
  if (last) end();
  int kept = errno;
  pthread_mutex_unlock(&lock);
  errno = kept;
}

ssize_t pwrite64(int fd, const void* data, size_t length, off64_t offset) {
  if (!is_ours(fd)) return REAL(pwrite64)(fd, data, length, offset);
  int last = begin();
  remember(fd, offset, offset + (off_t)length);
  // A part that direct I/O accepts too.
  if (last && kill_how == KILL_IN_THE_MIDDLE) length = length >= 1024 ? length / 1024 * 512 : length / 2;
  ssize_t done = REAL(pwrite64)(fd, data, length, offset);
  finish(last);
  return done;
}

ssize_t pwrite(int fd, const void* data, size_t length, off_t offset) {
  return pwrite64(fd, data, length, offset);
}

ssize_t write(int fd, const void* data, size_t length) {
  if (!is_ours(fd)) return REAL(write)(fd, data, length);
  int last = begin();
  off_t offset = lseek(fd, 0, SEEK_CUR);
  if (offset >= 0) remember(fd, offset, offset + (off_t)length);
  if (last && kill_how == KILL_IN_THE_MIDDLE) length /= 2;
  ssize_t done = REAL(write)(fd, data, length);
  finish(last);
  return done;
}

#define ON_DESCRIPTOR(name, parameters, arguments, fd, prepare, settle) \
  int name parameters {                                                 \
    if (!is_ours(fd)) return REAL(name) arguments;                      \
    int last = begin();                                                 \
    prepare;                                                            \
    int result = REAL(name) arguments;                                  \
    if (result == 0) settle;                                            \
    finish(last);                                                       \
    return result;                                                      \
  }

static void remember_cut(int fd, off_t length) {
  struct stat info;
  if (fstat(fd, &info) == 0) remember(fd, length, info.st_size > length ? info.st_size : length + 1);
}

ON_DESCRIPTOR(fsync, (int fd), (fd), fd, (void)0, forget(fd))
ON_DESCRIPTOR(fdatasync, (int fd), (fd), fd, (void)0, forget(fd))
ON_DESCRIPTOR(ftruncate64, (int fd, off64_t length), (fd, length), fd, remember_cut(fd, length), (void)0)

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

#define ON_PATH(name, parameters, arguments, path)   \
  int name parameters {                              \
    if (!below_root(path)) return REAL(name) arguments; \
    int last = begin();                              \
    int result = REAL(name) arguments;               \
    finish(last);                                    \
    return result;                                   \
  }

ON_PATH(rename, (const char* from, const char* to), (from, to), from)
ON_PATH(unlink, (const char* path), (path), path)
