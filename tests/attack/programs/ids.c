/* Prints the real and the effective user id, and whether the file may gain rights at exec. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    printf("%d %d %d\n", getuid(), geteuid(), getuid() == geteuid());
    return 0;
}
