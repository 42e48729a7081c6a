/*
 * Preloaded into a PostgreSQL server of statefork's own, where a contract says accelerate = true. Compiled on the
 * machine where it is used (see accelerator.py); no binary of it is shipped.
 *
 * PostgreSQL 18 clones a file by calls of copy_file_range for a mebibyte each, and then forces the files of the new
 * database to the disk one by one. Here the first call for a file shares the whole file (FICLONE), and the first fsync
 * of a file that was cloned forces the whole file system (syncfs); for the others of that batch it has then been done.
 * Where either is impossible the call is what it was: another file system, one without reflinks, a part of a file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CLONED_MAX = 8192 }; /* files of one batch; those beyond are forced one by one */

static struct stat cloned[CLONED_MAX]; /* as they were right after */
static unsigned cloned_count;
static int synced; /* whether the batch's file system was forced */

static void remember(int file)
{
    if (synced) /* another batch begins */
        cloned_count = 0;
    synced = 0;
    if (cloned_count < CLONED_MAX && fstat(file, &cloned[cloned_count]) == 0)
        cloned_count++;
}

/* Whether nobody touched a file since it was cloned. */
static int is_clone(const struct stat *file)
{
    for (unsigned i = 0; i < cloned_count; i++) {
        const struct stat *then = &cloned[i];

        if (then->st_ino == file->st_ino && then->st_dev == file->st_dev)
            return then->st_size == file->st_size && then->st_ctim.tv_sec == file->st_ctim.tv_sec &&
                   then->st_ctim.tv_nsec == file->st_ctim.tv_nsec;
    }
    return 0;
}

/* Whether `out`, empty, is now the whole of `in`; both positions are at the end then. */
static int clone_whole(int in, int out, struct stat *source)
{
    struct stat target;

    if (lseek(in, 0, SEEK_CUR) != 0 || lseek(out, 0, SEEK_CUR) != 0)
        return 0;
    if (fstat(in, source) != 0 || !S_ISREG(source->st_mode) || source->st_size == 0)
        return 0;
    if (fstat(out, &target) != 0 || !S_ISREG(target.st_mode) || target.st_size != 0)
        return 0;
    if (ioctl(out, FICLONE, in) != 0)
        return 0;
    lseek(in, 0, SEEK_END);
    lseek(out, 0, SEEK_END);
    remember(out);
    return 1;
}

/* The caller asks until it is told 0, and does not add up what it is told. */
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length, unsigned int flags)
{
    struct stat source;
    int before = errno;

    if (in_at == NULL && out_at == NULL && flags == 0 && length > 0 && clone_whole(in, out, &source)) {
        errno = before;
        return (size_t)source.st_size < length ? (ssize_t)source.st_size : (ssize_t)length;
    }
    errno = before;
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, length, flags);
}

int fsync(int file)
{
    struct stat status;
    int before = errno;

    if (cloned_count > 0 && fstat(file, &status) == 0) {
        if (!is_clone(&status)) {
            if (synced) /* the batch is over */
                cloned_count = 0;
        } else if (synced || syncfs(file) == 0) {
            synced = 1;
            errno = before;
            return 0;
        }
    }
    errno = before;
    return (int)syscall(SYS_fsync, file);
}
