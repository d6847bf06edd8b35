{
  description = "Root filesystems for Glasshouse jails";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.05";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forEach = f: builtins.listToAttrs
        (map (system: { name = system; value = f nixpkgs.legacyPackages.${system}; }) systems);

      # Packages of every profile. There is no systemd, bootloader or kernel: the daemon provides
      # init, and the kernel is the host's.
      base = pkgs: with pkgs; [ bashInteractive coreutils curl cacert ];

      # Additional packages by profile.
      profiles = pkgs: with pkgs; {
        base = [ ];
        python = [ python3 git ];
        node = [ nodejs git ];
        build = [ git gcc gnumake binutils ];
      };

      # A directory tree for an overlay: the store paths of the packages, /bin and similar
      # directories with links to them, and the files in /etc that programs need. The daemon adds
      # mount points and the jail's own /etc files in further layers.
      tree = pkgs: name: extra:
        let
          packages = base pkgs ++ extra;
          env = pkgs.buildEnv {
            name = "glasshouse-env-${name}";
            paths = packages;
            pathsToLink = [ "/bin" "/etc" "/include" "/lib" "/libexec" "/share" ];
            ignoreCollisions = true;
          };
          closure = pkgs.closureInfo { rootPaths = [ env ]; };
          passwd = pkgs.writeText "passwd" ''
            root:x:0:0:root:/root:/bin/bash
            agent:x:1000:1000:agent:/home/agent:/bin/bash
            nobody:x:65534:65534:nobody:/nonexistent:/bin/false
          '';
          group = pkgs.writeText "group" ''
            root:x:0:
            agent:x:1000:
            nogroup:x:65534:
          '';
          nsswitch = pkgs.writeText "nsswitch.conf" ''
            passwd: files
            group: files
            hosts: files dns
          '';
          # Login shells need the search path only.
          profile = pkgs.writeText "profile" ''
            PATH=/usr/local/bin:/usr/bin:/bin
            export PATH
            export SSL_CERT_FILE=/etc/ssl/certs/ca-bundle.crt
          '';
        in
        pkgs.runCommand "glasshouse-rootfs-${name}" { } ''
          mkdir -p $out/nix/store $out/etc/ssl/certs $out/usr/local/bin $out/home/agent
          while read -r path; do
            cp -a "$path" $out/nix/store/
          done < ${closure}/store-paths

          for dir in bin include lib libexec share; do
            if [ -e ${env}/$dir ]; then
              ln -s ${env}/$dir $out/usr/$dir
            fi
          done
          ln -s usr/bin $out/bin
          ln -s usr/bin $out/sbin
          if [ -e $out/usr/lib ]; then
            ln -s usr/lib $out/lib
          fi

          cp ${passwd} $out/etc/passwd
          cp ${group} $out/etc/group
          cp ${nsswitch} $out/etc/nsswitch.conf
          cp ${profile} $out/etc/profile
          ln -s ${env}/etc/ssl/certs/ca-bundle.crt $out/etc/ssl/certs/ca-bundle.crt
          ln -s ca-bundle.crt $out/etc/ssl/certs/ca-certificates.crt
        '';
    in
    {
      packages = forEach (pkgs:
        let
          trees = builtins.mapAttrs (tree pkgs) (profiles pkgs);
        in
        {
          rootfs = trees.base;
          rootfs-base = trees.base;
          rootfs-python = trees.python;
          rootfs-node = trees.node;
          rootfs-build = trees.build;
          default = trees.base;
        });
    };
}
