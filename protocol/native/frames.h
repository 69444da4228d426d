/* The functions of frames.c that Python calls. Read by cffi, like runs.h. */

/* Pass over whole frames from `offset` on in which protocol/frames.py has nothing to look at: those of at most `small` bytes and plain
   transfers, without an extended header, near whose begin the format of a batch does not occur. Returns the offset of the first other one,
   or of what is left at the end. */
size_t frames_pass(const char *data, size_t offset, size_t size, size_t small);
